"""The tokenizer of RWKV's "World" vocabularies: greedy longest match on the bytes of a text.

Its tokens are bytes, which files write as Python literals (BlinkDL 2023, rwkv_tokenizer.py).
"""

import re
from collections.abc import Mapping

_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_CONTROL_ESCAPES = {"t": "\t", "n": "\n", "r": "\r"}
HEAD_BYTES = 2  # by which tokens are looked up; shorter tokens are looked up directly


def unescape_token(text: str) -> bytes:
    r"""Return the bytes of a token: \t, \n, \r and \x with two digits are one byte each, any other character after a
    backslash is the character itself; text that is not ASCII is UTF-8."""
    parts = list[bytes]()
    end = 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[end : match.start()].encode("utf-8", "replace"))
        escape = match[1]
        end = match.end()
        is_byte = len(escape) == 3
        parts.append(
            bytes([int(escape[1:], 16)]) if is_byte else _CONTROL_ESCAPES.get(escape, escape).encode("utf-8", "replace")
        )
    return b"".join([*parts, text[end:].encode("utf-8", "replace")])


def escape_token(token: bytes) -> str:
    """Return the inverse of `unescape_token`, as llama.cpp's converter writes it."""
    return repr(token)[2:-1]


class RwkvModel:
    """Turns texts into ids; `tokens` are the bytes of each token, among them every byte that texts may contain."""

    def __init__(self, tokens: Mapping[bytes, int]) -> None:
        self._tokens = {token: number for token, number in tokens.items() if token}
        lengths: dict[bytes, set[int]] = {}
        for token in self._tokens:
            if len(token) >= HEAD_BYTES:
                lengths.setdefault(token[:HEAD_BYTES], set()).add(len(token))
        # Head -> the lengths of tokens that begin with it, longest first.
        self._lengths = {head: sorted(each, reverse=True) for head, each in lengths.items()}

    @property
    def missing_bytes(self) -> bytes:
        """The bytes without a token of their own."""
        return bytes(byte for byte in range(256) if bytes([byte]) not in self._tokens)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text whose bytes all have tokens."""
        data = text.encode()
        tokens = self._tokens
        lengths = self._lengths
        ids = list[int]()
        position = 0
        end = len(data)
        while position < end:
            for length in lengths.get(data[position : position + HEAD_BYTES], ()):
                token = tokens.get(data[position : position + length])
                if token is not None and position + length <= end:
                    break
            else:
                length = 1
                token = tokens[data[position : position + 1]]
            ids.append(token)
            position += length
        return ids
