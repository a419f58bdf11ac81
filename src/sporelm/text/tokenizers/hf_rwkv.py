"""rwkv_vocab_v20230424.txt in RWKV's folders: on each line a token's id, its text as a Python literal, and its length.

Token 0, which ends a text, is on no line (BlinkDL 2023, rwkv_tokenizer.py).
"""

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError
from sporelm.text.tokenizers.gguf_rwkv import load_gguf_rwkv
from sporelm.text.tokenizers.gguf_vocabulary import MAX_TOKENS
from sporelm.text.tokenizers.hf_folder import MAX_TOKENIZER_BYTES, TokenizerFolder, read_limited_bytes
from sporelm.text.tokenizers.rwkv_tokenizer import escape_token
from sporelm.text.tokenizers.token_types import CONTROL, NORMAL, UNUSED
from sporelm.text.tokenizers.tokenizer import Tokenizer

RWKV_VOCABULARY = "rwkv_vocab_v20230424.txt"
END_TEXT = "<s>"  # the text of token 0 by llama.cpp's converter
_LINE = re.compile(r"([0-9]{1,8}) (b?)('.*'|\".*\") ([0-9]{1,5})", re.DOTALL)


def load_hf_rwkv(path: Path) -> Tokenizer:
    """Return the tokenizer of such a file, and the small files beside it. Raises ModelFileError for a damaged one."""
    folder = TokenizerFolder(path.parent)
    tokens, types = read_rwkv_vocabulary(folder, path)
    metadata: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    metadata |= {f"tokenizer.ggml.{name}_token_id": 0 for name in ("bos", "eos")}
    tokenizer = load_gguf_rwkv(metadata, str(path))
    eos_ids = {token for token in folder.read_ids("eos_token_id") if token < len(tokens)}
    tokenizer.special = replace(tokenizer.special, stop_ids=tokenizer.special.stop_ids | eos_ids)
    tokenizer.chat_templates = folder.read_chat_templates()
    return tokenizer


def read_rwkv_vocabulary(folder: TokenizerFolder, path: Path) -> tuple[list[str], list[int]]:
    """Return texts, as GGUF files write them, and types by id; ids without a line are unused."""
    lines = read_limited_bytes(path, MAX_TOKENIZER_BYTES).decode("utf-8", "replace").split("\n")
    tokens = dict(_parse_line(line, path) for line in lines)
    tokens.pop(0, None)  # from empty lines
    count = max(tokens, default=0) + 1
    if not 1 < count <= MAX_TOKENS:
        raise ModelFileError(f"{path} lists {count - 1} tokens, not 1 to {MAX_TOKENS}; it is damaged")
    texts = [escape_token(tokens[token]) if token in tokens else f"[PAD{token}]" for token in range(count)]
    texts[0] = _find_end_text(folder, texts)
    return texts, [CONTROL, *(NORMAL if token in tokens else UNUSED for token in range(1, count))]


def _parse_line(line: str, path: Path) -> tuple[int, bytes]:
    if not line.strip():
        return 0, b""
    match = _LINE.fullmatch(line.rstrip("\r"))
    try:
        if match is None:
            raise ValueError("not a line of the format")
        inner = match[3][1:-1]
        # Most texts need no parser.
        text = inner if "\\" not in inner and not match[2] else ast.literal_eval(match[2] + match[3])
        token = text.encode() if isinstance(text, str) else text
        if not isinstance(token, bytes) or len(token) != int(match[4]):
            raise ValueError("another length")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ModelFileError(
            f"{path}: {line[:60]!r} is not a token's id, text and length; the file is damaged"
        ) from None
    return int(match[1]), token


def _find_end_text(folder: TokenizerFolder, texts: list[str]) -> str:
    """Return the text of token 0 by the small files."""
    added = folder.config.get("added_tokens_decoder")
    entry = added.get("0") if isinstance(added, dict) else None
    content = entry.get("content") if isinstance(entry, dict) else None
    names = folder.read_names()
    candidates = [content, *(names.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token"))]
    taken = {*texts}
    return next(
        (text for text in candidates if isinstance(text, str) and text and escape_token(text.encode()) not in taken),
        END_TEXT,
    )
