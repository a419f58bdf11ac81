"""The tokenizer entries of a GGUF file's metadata, checked.

Keys and token types: the GGUF specification (ggml docs/gguf.md), section "Tokenizer", and llama.cpp's llama-vocab.cpp.
"""

from collections.abc import Collection, Mapping
from itertools import repeat
from typing import Any

from sporelm.errors import ModelFileError
from sporelm.text.token_bytes import ByteDecoding, bytes_of_byte_level, bytes_of_sentencepiece
from sporelm.text.token_types import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED

MAX_TOKENS = 1 << 22
_NAMED = ("bos", "eos", "unknown", "separator", "seperator", "padding")


class Vocabulary:
    """The checked tokenizer entries of one file's metadata.

    tokens       id -> text, in the byte alphabet
    ids          text -> id
    types        id -> token type
    special      ids recognised in text as a whole: control, unknown and user-defined tokens
    """

    def __init__(self, metadata: Mapping[str, Any], label: str) -> None:
        self.metadata, self.label = metadata, label
        self.tokens = self._strings("tokenizer.ggml.tokens")
        if not 0 < len(self.tokens) <= MAX_TOKENS:
            raise self.fail(f"tokenizer.ggml.tokens holds {len(self.tokens)} tokens, not 1 to {MAX_TOKENS}")
        self.ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(self.ids) != len(self.tokens):
            again, first = next((i, self.ids[t]) for i, t in enumerate(self.tokens) if self.ids[t] != i)
            raise self.fail(f"tokenizer.ggml.tokens: {again} and {first} are the same token {self.shown(again)}")
        self.types = self._types()
        kinds = (UNKNOWN, CONTROL, USER_DEFINED)
        self.special = [token for token, kind in enumerate(self.types) if kind != NORMAL and kind in kinds]

    def fail(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self.label}: {message}; the vocabulary is damaged")

    def shown(self, token: int) -> str:
        """A token as it appears in messages."""
        return repr(self.tokens[token][:60])

    def value(self, key: str, kind: type) -> Any:
        """The entry `key`, of type `kind`, or None where there is none."""
        value = self.metadata.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise self.fail(f"{key} is a {type(value).__name__}, not a {kind.__name__}")
        return value

    def token_id(self, *keys: str) -> int | None:
        """The token that the first of `keys` present names, or None."""
        for key in keys:
            token: int | None = self.value(key, int)
            if token is not None:
                if not 0 <= token < len(self.tokens):
                    raise self.fail(f"{key} is {token}, outside the {len(self.tokens)} tokens")
                return token
        return None

    def merges(self) -> list[tuple[str, str]]:
        """The merges, best first; every result is a token."""
        lines = self._strings("tokenizer.ggml.merges")
        if set(map(str.count, lines, repeat(" "))) - {1}:
            bad = next(line for line in lines if line.count(" ") != 1)
            raise self.fail(f"tokenizer.ggml.merges: {bad[:60]!r} is not two tokens with a space between")
        # One split for all is several times quicker than one for each.
        words = " ".join(lines).split(" ") if lines else []
        pairs = list(zip(words[::2], words[1::2], strict=True))
        # The library says it when a part is unknown; an unknown result makes it panic.
        known = self.ids.__contains__
        if not all(map(known, map("".join, pairs))):
            bad = next(" ".join(pair) for pair in pairs if not known("".join(pair)))
            raise self.fail(f"tokenizer.ggml.merges: {bad[:60]!r} gives no token")
        return pairs

    def _types(self) -> list[int]:
        key = "tokenizer.ggml.token_type"
        values = self.metadata.get(key)
        if values is None:
            named = {self.token_id(f"tokenizer.ggml.{kind}_token_id") for kind in _NAMED}
            return [CONTROL if token in named else NORMAL for token in range(len(self.tokens))]
        types = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(types, list) or (types and type(types[0]) is not int):
            raise self.fail(f"{key} is not an array of integers")
        if len(types) != len(self.tokens):
            raise self.fail(f"{key} has {len(types)} entries for {len(self.tokens)} tokens")
        return types

    def _strings(self, key: str) -> list[str]:
        values = self.metadata.get(key)
        if values is None:
            raise self.fail(f"{key} is missing")
        decode_all = getattr(values, "decode_all", None)
        strings: list[str] = decode_all() if decode_all else values
        if not isinstance(strings, list) or set(map(type, strings)) - {str}:
            raise self.fail(f"{key} is not an array of strings")
        return strings


def decoding_of_tokens(
    vocabulary: Vocabulary, special: Collection[int], *, pieces: bool, leading_spaces: int = 0
) -> ByteDecoding:
    """The bytes of tokens: `special` ones are written as they are.

    The others are in the byte alphabet; or, as `pieces`, have ▁ for a space, and byte tokens stand for one byte.
    """
    # What a tokenizer keeps must not hold on to the vocabulary: that keeps the file open.
    tokens = vocabulary.tokens
    byte_tokens = frozenset(tokens[i] for i, kind in enumerate(vocabulary.types) if kind == BYTE) if pieces else ()

    def convert(text: str) -> bytes:
        return bytes_of_sentencepiece(text, byte_tokens=text in byte_tokens)

    return ByteDecoding(
        lambda token: tokens[token] if 0 <= token < len(tokens) else None,
        convert if pieces else bytes_of_byte_level,
        plain=special,
        leading_spaces=leading_spaces,
    )
