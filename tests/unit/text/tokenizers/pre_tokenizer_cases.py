"""Vocabularies and texts with which each way to cut is tried, by the tests and by what asks llama.cpp."""

from typing import Any

import numpy as np

from sporelm.text.tokenizers.pre_tokenizers import PRE_TOKENIZERS

RAW = sorted(name for name, one in PRE_TOKENIZERS.items() if one.metaspace)
BYTE_LEVEL = sorted(set(PRE_TOKENIZERS) - set(RAW))

# llama.cpp and the models' own tokenizers agree on these; docs/tokenizers.md says on which they do not.
TEXTS = [
    "Hello, world! It's they'RE we'Ll 'tis o'clock can't I'M",
    "  two leading,   three inside, and trailing   ",
    "tabs\tand\r\nlines\n\n\n  indented\n\t\treturn x_1 + y**2;  // (done)\r\n\r\n",
    "1 12 123 1234 12345 1,234.56 3.14159 0x1F",
    "Ünïcödé façade ΣΊΣΥΦΟΣ Привет мир naïve e\u0301te\u0301",
    "你好,世界。日本語のテキスト、カタカナ 한국어 문장 ภาษาไทย",
    "السلام عليكم ١٢٣ שלום हिन्दी में বাংলা",
    "😀👍🏽👨‍👩‍👧 ✅→∑ ½ Ⅷ ² €100 £5 ~ ^ ` | $x <a> != >=",
    '"quoted" (paren) [brack] {brace} #tag @user %s \\n /path/to:file... -- __init__',
    "nbsp\u00a0here\u2003em\u0085next \u200bzero\ufeffbom\x00nul\x1funit\x7f",
    "<sentinel:12>IMGIMGABZ a    b  c\nd",
    "\n \n  \n   x",
    "'",
    " ",
]


def raw_vocabulary() -> dict[str, Any]:
    """The tokenizer entries of a small vocabulary of characters: letters, a few merges, a token for every byte."""
    bytes_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [*"▁\nabcdefghijklmnopqrstuvwxyzHIT,.!'0123456789", "é", "你", "好"]
    merges = [
        "t h",
        "th e",
        "▁ the",
        "▁ ▁",
        "▁▁ ▁▁",
        "i n",
        "e n",
        "l l",
        "H e",
        "He ll",
        "Hell o",
        "1 2",
        "12 3",
        "你 好",
    ]
    tokens = ["<pad>", "<eos>", "<bos>", *bytes_tokens, *letters]
    tokens += [merge.replace(" ", "") for merge in merges] + ["\n\n", "\n\n\n"]
    types = [3] * 3 + [6] * 256 + [1] * (len(tokens) - 259)
    entries = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": np.array(types, np.int32),
        "merges": merges,
        "bos_token_id": 2,
        "eos_token_id": 1,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in entries.items()}
