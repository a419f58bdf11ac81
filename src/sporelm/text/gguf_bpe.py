"""BPE tokenizers from the metadata of GGUF files: byte-level ones ("gpt2"), and those of characters ("gemma4").

Rules: llama.cpp's llama-vocab.cpp (llm_tokenizer_bpe).
"""

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.bpe_engine import SPACE, BpeEngine, Merging
from sporelm.text.gguf_roles import chat_templates, flag, named_ids, roles_of, special_tokens_of
from sporelm.text.gguf_vocabulary import Vocabulary
from sporelm.text.pre_tokenizers import PreTokenizer, cutter_of, pre_tokenizer
from sporelm.text.token_bytes import ByteDecoding, byte_alphabet, bytes_of_byte_level, bytes_of_sentencepiece
from sporelm.text.tokenizer import Tokenizer, one_line

log = logging.getLogger(__name__)

# Bytes that no UTF-8 text holds.
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
_BYTE = 6  # token type
# Pieces of a vocabulary in which no token goes on over a space.
_WORDS = f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+"


def tokenizer_of_gguf(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """The BPE tokenizer that the metadata of a GGUF file describes.

    Raises ModelFileError for a damaged vocabulary, UnsupportedModel for another kind or an unknown pre-tokenizer.
    """
    pre = _pre_tokenizer(metadata, label)
    vocabulary = Vocabulary(metadata, label)
    roles = roles_of(vocabulary)
    merging = _merging(vocabulary, pre)
    named = named_ids(vocabulary, {})
    bos, eos = named.get("bos_token"), named.get("eos_token")
    adds_bos = pre.always_bos or flag(vocabulary, "add_bos_token", pre.adds_bos)
    adds_eos = flag(vocabulary, "add_eos_token", False)
    # What the tokenizer keeps must not hold on to the vocabulary: it keeps the file open.
    tokens, plain = vocabulary.tokens, roles.plain
    return Tokenizer(
        BpeEngine(roles.parsing, merging),
        lambda: BpeEngine(plain, merging),
        decoding=ByteDecoding(
            lambda token: tokens[token] if 0 <= token < len(tokens) else None,
            _converter(vocabulary) if pre.raw else bytes_of_byte_level,
            plain=roles.control | roles.defined,
        ),
        special=special_tokens_of(
            vocabulary,
            roles,
            {},
            prefix=(bos,) if adds_bos and bos is not None else (),
            suffix=(eos,) if adds_eos and eos is not None else (),
        ),
        chat_templates=chat_templates(vocabulary),
        vocab_size=len(tokens),
        missing_bytes=b"" if pre.raw else _missing_bytes(vocabulary),
        label=label,
    )


def _pre_tokenizer(metadata: Mapping[str, Any], label: str) -> PreTokenizer:
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise ModelFileError(f"{label} holds no vocabulary (tokenizer.ggml.model); use a GGUF file that does")
    if model == "gemma4":
        return pre_tokenizer("gemma4", label)
    if model != "gpt2":
        raise UnsupportedModel(
            f"{label}: tokenizer model {str(model)[:60]!r} is not supported from GGUF; supported are 'gpt2', "
            "'gemma4' (BPE), 'llama', 't5' (SentencePiece), 'bert' (WordPiece); or use a folder with a tokenizer.json"
        )
    name = metadata.get("tokenizer.ggml.pre", "")
    if not isinstance(name, str):
        raise ModelFileError(f"{label}: tokenizer.ggml.pre is a {type(name).__name__}, not a str; the file is damaged")
    if not name:
        _warn_once(label)
        name = "default"
    return pre_tokenizer(name, label)


@cache
def _warn_once(label: str) -> None:
    log.warning(
        "%s does not say how text is cut before merging (tokenizer.ggml.pre): 'default' is used, as in llama.cpp, and "
        "answers may be worse; set the entry to the name of the model's own way",
        label,
    )


def _merging(vocabulary: Vocabulary, pre: PreTokenizer) -> Merging:
    from tokenizers.models import BPE

    merges = vocabulary.merges()
    rules = pre.rules
    # At spaces too where no merge can reach over one: words repeat, lines need not.
    if pre.raw and not re.search(f"[^{SPACE}\n]{SPACE}", "\n".join(map("".join, merges))):
        rules = (*rules, _WORDS)
    try:
        # The memory of pieces replaces the library's; with ignore_merges its answer would be `whole`'s.
        model = BPE(vocab=vocabulary.ids, merges=merges, cache_capacity=0, byte_fallback=pre.raw)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is a BaseException
        raise vocabulary.fail(f"the vocabulary cannot be built: {one_line(error)}") from None
    whole = vocabulary.ids if pre.ignore_merges else {}
    if pre.whole_newlines:
        whole = {
            text: token for text, token in vocabulary.ids.items() if text.startswith("\n") and not text.strip("\n")
        }
    letters = _letters(vocabulary) if pre.raw else None
    return Merging(cutter_of(rules), model, whole, raw=pre.raw, letters=letters)


def _letters(vocabulary: Vocabulary) -> frozenset[str] | None:
    """The characters that a vocabulary of characters can write; None where byte tokens write all."""
    if all(f"<0x{byte:02X}>" in vocabulary.ids for byte in range(256) if byte not in _NEVER_IN_UTF8):
        return None
    return frozenset(text for text in vocabulary.tokens if len(text) == 1)


def _missing_bytes(vocabulary: Vocabulary) -> bytes:
    """The bytes of UTF-8 texts that no token stands for."""
    alphabet = byte_alphabet()
    return bytes(b for b in range(256) if b not in _NEVER_IN_UTF8 and alphabet[b] not in vocabulary.ids)


def _converter(vocabulary: Vocabulary) -> Any:
    """What gives the bytes of a token written in characters."""
    tokens, types = vocabulary.tokens, vocabulary.types
    byte_tokens = frozenset(tokens[token] for token, kind in enumerate(types) if kind == _BYTE)
    return lambda text: bytes_of_sentencepiece(text, byte_tokens=text in byte_tokens)
