"""PLaMo's vocabularies ("plamo2") from the metadata of GGUF files, by llama.cpp's rules (llama-vocab.cpp).

One rule is ours: plain text never becomes a control token, so that it cannot forge one.
"""

from collections.abc import Mapping
from typing import Any

from sporelm.text.tokenizers.byte_level import make_byte_fallback
from sporelm.text.tokenizers.gguf_special_tokens import (
    build_special_tokens,
    classify_special_tokens,
    find_prefix_and_suffix,
    read_chat_templates,
    read_named_ids,
)
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary
from sporelm.text.tokenizers.plamo_unigram import PlamoUnigram
from sporelm.text.tokenizers.token_decoder import ByteTokenDecoder
from sporelm.text.tokenizers.token_types import BYTE
from sporelm.text.tokenizers.tokenizer import Tokenizer
from sporelm.text.tokenizers.tokenizer_pipeline import TokenizerPipeline
from sporelm.text.tokenizers.unigram import check_total_length

_DEFAULT_IDS = {"unk_token": 0, "bos_token": 1, "eos_token": 2, "pad_token": 3}


def load_gguf_plamo(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """Return the tokenizer of a "plamo2" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = GgufVocabulary(metadata, label)
    vocabulary.check_token_lengths()
    check_total_length(vocabulary.tokens, label)
    tokens = vocabulary.tokens
    types = vocabulary.types
    scores = vocabulary.read_scores()
    byte_tokens = {
        text: int(text[3:5], 16) for text, token in vocabulary.ids.items() if types[token] == BYTE and _is_byte(text)
    }
    if len(byte_tokens) < 256:
        raise vocabulary.make_error(
            f"{len(byte_tokens)} of its tokens stand for bytes, <0x00> to <0xFF>; there must be 256"
        )
    roles = classify_special_tokens(vocabulary)
    named_ids = read_named_ids(vocabulary, _DEFAULT_IDS)
    ids = {text: i for i, text in enumerate(tokens) if text and i not in roles.special and types[i] != BYTE}
    model = PlamoUnigram(
        ids, {text: scores[i] for text, i in ids.items()}, make_byte_fallback(vocabulary.ids, unknown=None)
    )
    prefix, suffix = find_prefix_and_suffix(vocabulary, named_ids, adds_bos=False, adds_eos=False)
    return Tokenizer(
        TokenizerPipeline(roles.splitter, model),
        TokenizerPipeline(roles.plain_splitter, model),
        decoder=ByteTokenDecoder(
            lambda token: tokens[token] if 0 <= token < len(tokens) else None,
            lambda text: bytes([byte_tokens[text]]) if text in byte_tokens else text.encode(),
            verbatim_ids=roles.special,
        ),
        special=build_special_tokens(vocabulary, roles, _DEFAULT_IDS, prefix=prefix, suffix=suffix),
        chat_templates=read_chat_templates(vocabulary),
        vocab_size=len(tokens),
        label=label,
    )


def _is_byte(text: str) -> bool:
    is_hexadecimal = set(text[3:5]) <= set("0123456789ABCDEFabcdef")
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">") and is_hexadecimal
