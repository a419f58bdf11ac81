"""PLaMo's vocabularies ("plamo2") from the metadata of GGUF files; the rules are llama.cpp's (llama-vocab.cpp).

One rule is ours: letters never become a control token, so that plain text cannot forge one.
"""

from collections.abc import Mapping
from typing import Any

from sporelm.text.backward_unigram import BackwardUnigram
from sporelm.text.gguf_roles import chat_templates, framing, named_ids, roles_of, special_tokens_of
from sporelm.text.gguf_spm import check_lengths, scores_of, spelling
from sporelm.text.gguf_vocabulary import Vocabulary
from sporelm.text.sentencepiece_engine import SentencePieceEngine
from sporelm.text.token_bytes import ByteDecoding
from sporelm.text.token_types import BYTE
from sporelm.text.tokenizer import Tokenizer
from sporelm.text.unigram import check_total_length

_DEFAULTS = {"unk_token": 0, "bos_token": 1, "eos_token": 2, "pad_token": 3}


def plamo_of_gguf(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """The tokenizer of a "plamo2" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = Vocabulary(metadata, label)
    check_lengths(vocabulary)
    check_total_length(vocabulary.tokens, label)
    tokens, types, scores = vocabulary.tokens, vocabulary.types, scores_of(vocabulary)
    single = {
        text: int(text[3:5], 16) for text, token in vocabulary.ids.items() if types[token] == BYTE and _is_byte(text)
    }
    if len(single) < 256:
        raise vocabulary.fail(f"{len(single)} of its tokens stand for bytes, <0x00> to <0xFF>; there must be 256")
    roles, named = roles_of(vocabulary), named_ids(vocabulary, _DEFAULTS)
    usable = {text: i for i, text in enumerate(tokens) if text and i not in roles.special and types[i] != BYTE}
    model = BackwardUnigram(usable, {text: scores[i] for text, i in usable.items()}, spelling(vocabulary.ids, None))
    prefix, suffix = framing(vocabulary, named, bos=False, eos=False)
    plain = roles.plain
    return Tokenizer(
        SentencePieceEngine(roles.parsing, _as_it_is, model),
        lambda: SentencePieceEngine(plain, _as_it_is, model),
        decoding=ByteDecoding(
            lambda token: tokens[token] if 0 <= token < len(tokens) else None,
            lambda text: bytes([single[text]]) if text in single else text.encode(),
            plain=roles.special,
        ),
        special=special_tokens_of(vocabulary, roles, _DEFAULTS, prefix=prefix, suffix=suffix),
        chat_templates=chat_templates(vocabulary),
        vocab_size=len(tokens),
        label=label,
    )


def _is_byte(text: str) -> bool:
    hexadecimal = set(text[3:5]) <= set("0123456789ABCDEFabcdef")
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">") and hexadecimal


def _as_it_is(text: str, first: bool) -> str:
    return text
