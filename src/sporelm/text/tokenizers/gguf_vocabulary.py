"""The tokenizer entries of a GGUF file's metadata, checked.

Keys and token types: the GGUF specification (ggml docs/gguf.md), section "Tokenizer", and llama.cpp's llama-vocab.cpp.
"""

import math
from collections.abc import Collection, Mapping
from itertools import repeat
from typing import Any

import numpy as np

from sporelm.errors import ModelFileError
from sporelm.text.tokenizers.byte_level import decode_byte_level, decode_sentencepiece
from sporelm.text.tokenizers.token_decoder import ByteTokenDecoder
from sporelm.text.tokenizers.token_types import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED

MAX_TOKENS = 1 << 22
MAX_TOKEN_CHARACTERS = 1 << 14
_NAMED_TOKENS = ("bos", "eos", "unknown", "separator", "seperator", "padding")


class GgufVocabulary:
    """The checked tokenizer entries of one file's metadata.

    tokens       id -> text as the file writes it
    ids          text -> id
    types        id -> token type
    special      ids matched in text as a whole: control, unknown and user-defined tokens
    """

    def __init__(self, metadata: Mapping[str, Any], label: str) -> None:
        self.metadata = metadata
        self.label = label
        self.tokens = self._read_strings("tokenizer.ggml.tokens")
        if not 0 < len(self.tokens) <= MAX_TOKENS:
            raise self.make_error(f"tokenizer.ggml.tokens holds {len(self.tokens)} tokens, not 1 to {MAX_TOKENS}")
        self.ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(self.ids) != len(self.tokens):
            first, last = next((i, self.ids[t]) for i, t in enumerate(self.tokens) if self.ids[t] != i)
            raise self.make_error(
                f"tokenizer.ggml.tokens: {first} and {last} are the same token {self.format_token(first)}"
            )
        self.types = self._read_types()
        matched = (UNKNOWN, CONTROL, USER_DEFINED)
        self.special = [token for token, kind in enumerate(self.types) if kind != NORMAL and kind in matched]

    def make_error(self, message: str) -> ModelFileError:
        """Return the error for a damaged vocabulary."""
        return ModelFileError(f"{self.label}: {message}; the vocabulary is damaged")

    def format_token(self, token: int) -> str:
        """Return a token as messages show it."""
        return repr(self.tokens[token][:60])

    def read(self, key: str, kind: type) -> Any:
        """Return the entry `key`, of type `kind`; None if it is absent."""
        value = self.metadata.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise self.make_error(f"{key} is a {type(value).__name__}, not a {kind.__name__}")
        return value

    def read_flag(self, name: str, default: bool) -> bool:
        """Return the boolean entry `tokenizer.ggml.` + `name`; `default` if it is absent."""
        value: bool | None = self.read(f"tokenizer.ggml.{name}", bool)
        return default if value is None else value

    def read_token_id(self, *keys: str) -> int | None:
        """Return the token id in the first of `keys` that is present, or None."""
        for key in keys:
            token: int | None = self.read(key, int)
            if token is not None:
                if not 0 <= token < len(self.tokens):
                    raise self.make_error(f"{key} is {token}, outside the {len(self.tokens)} tokens")
                return token
        return None

    def read_merges(self) -> list[tuple[str, str]]:
        """Return the merges, best first; every result is a token."""
        lines = self._read_strings("tokenizer.ggml.merges")
        if set(map(str.count, lines, repeat(" "))) - {1}:
            bad = next(line for line in lines if line.count(" ") != 1)
            raise self.make_error(f"tokenizer.ggml.merges: {bad[:60]!r} is not two tokens separated by a space")
        # One split of all lines is several times faster than one for each.
        words = " ".join(lines).split(" ") if lines else []
        pairs = list(zip(words[::2], words[1::2], strict=True))
        # The library reports an unknown part; an unknown result makes it panic.
        is_token = self.ids.__contains__
        if not all(map(is_token, map("".join, pairs))):
            bad = next(" ".join(pair) for pair in pairs if not is_token("".join(pair)))
            raise self.make_error(f"tokenizer.ggml.merges: the result of {bad[:60]!r} is not a token")
        return pairs

    def read_scores(self) -> list[float]:
        """Return the score of every token. Raises ModelFileError where they are absent, or not as many as tokens."""
        key = "tokenizer.ggml.scores"
        values = self.metadata.get(key)
        if values is None:
            raise self.make_error(f"{key} is missing")
        array = np.asarray(values) if isinstance(values, (list, np.ndarray)) else None
        if array is None or array.ndim != 1 or array.dtype.kind not in "if":
            raise self.make_error(f"{key} is not an array of numbers")
        if len(array) != len(self.tokens):
            raise self.make_error(f"{key} has {len(array)} entries for {len(self.tokens)} tokens")
        with np.errstate(all="ignore"):  # numbers beyond float32 are infinite; NaN is refused below
            scores: list[float] = array.astype(np.float32).astype(np.float64).tolist()
        if any(map(math.isnan, scores)):
            first = next(i for i, score in enumerate(scores) if math.isnan(score))
            raise self.make_error(f"{key} {first} is not a number")
        return scores

    def check_token_lengths(self) -> None:
        """Raise ModelFileError for a token longer than MAX_TOKEN_CHARACTERS."""
        longest = max(range(len(self.tokens)), key=lambda token: len(self.tokens[token]))
        size = len(self.tokens[longest])
        if size > MAX_TOKEN_CHARACTERS:
            raise self.make_error(f"token {longest} has {size} characters, more than {MAX_TOKEN_CHARACTERS}")

    def _read_types(self) -> list[int]:
        key = "tokenizer.ggml.token_type"
        values = self.metadata.get(key)
        if values is None:
            named = {self.read_token_id(f"tokenizer.ggml.{name}_token_id") for name in _NAMED_TOKENS}
            return [CONTROL if token in named else NORMAL for token in range(len(self.tokens))]
        types = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(types, list) or (types and type(types[0]) is not int):
            raise self.make_error(f"{key} is not an array of integers")
        if len(types) != len(self.tokens):
            raise self.make_error(f"{key} has {len(types)} entries for {len(self.tokens)} tokens")
        return types

    def _read_strings(self, key: str) -> list[str]:
        values = self.metadata.get(key)
        if values is None:
            raise self.make_error(f"{key} is missing")
        decode_all = getattr(values, "decode_all", None)
        strings: list[str] = decode_all() if decode_all else values
        if not isinstance(strings, list) or set(map(type, strings)) - {str}:
            raise self.make_error(f"{key} is not an array of strings")
        return strings


def make_gguf_decoder(
    vocabulary: GgufVocabulary, verbatim_ids: Collection[int], *, metaspace: bool, leading_spaces: int = 0
) -> ByteTokenDecoder:
    """Return the decoder of a vocabulary. Tokens of `verbatim_ids` stand for their own text.

    metaspace    the other tokens have ▁ for a space, and byte tokens stand for one byte; otherwise they are in the
                 byte-level alphabet
    """
    # A tokenizer must not hold a reference to the vocabulary: that would keep the file open.
    tokens = vocabulary.tokens
    byte_tokens = frozenset(tokens[i] for i, kind in enumerate(vocabulary.types) if kind == BYTE) if metaspace else ()

    def to_bytes(text: str) -> bytes:
        return decode_sentencepiece(text, byte_tokens=text in byte_tokens)

    return ByteTokenDecoder(
        lambda token: tokens[token] if 0 <= token < len(tokens) else None,
        to_bytes if metaspace else decode_byte_level,
        verbatim_ids=verbatim_ids,
        leading_spaces=leading_spaces,
    )
