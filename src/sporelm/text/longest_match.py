"""The tokenizer of RWKV's "World" vocabularies: at each place of a text's bytes the longest token that stands there.

Its tokens are bytes, which files write as Python writes them in a program (BlinkDL 2023, rwkv_tokenizer.py).
"""

import re
from collections.abc import Mapping

_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r"}
HEAD = 2  # bytes by which tokens are looked up; what is shorter stands by itself


def unescaped(text: str) -> bytes:
    r"""The bytes of a token: \t, \n, \r and \x with two digits are one byte each, of any other letter after a backslash
    the letter itself; what is not ASCII is UTF-8."""
    parts, end = list[bytes](), 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[end : match.start()].encode("utf-8", "replace"))
        found, end = match[1], match.end()
        is_byte = len(found) == 3
        parts.append(bytes([int(found[1:], 16)]) if is_byte else _LETTERS.get(found, found).encode("utf-8", "replace"))
    return b"".join([*parts, text[end:].encode("utf-8", "replace")])


def escaped(token: bytes) -> str:
    """The same the other way round, as llama.cpp's converter writes it."""
    return repr(token)[2:-1]


class LongestMatch:
    """Ids of texts; `tokens` are the bytes of each, among them every byte that texts may hold."""

    def __init__(self, tokens: Mapping[bytes, int]) -> None:
        self._tokens = {token: number for token, number in tokens.items() if token}
        lengths: dict[bytes, set[int]] = {}
        for token in self._tokens:
            if len(token) >= HEAD:
                lengths.setdefault(token[:HEAD], set()).add(len(token))
        # Of what a token begins with: the lengths that such tokens have, longest first.
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}

    @property
    def missing(self) -> bytes:
        """The bytes that are no tokens by themselves."""
        return bytes(byte for byte in range(256) if bytes([byte]) not in self._tokens)

    def ids(self, text: str) -> list[int]:
        """The ids of a text whose bytes are all tokens."""
        data, tokens, lengths = text.encode(), self._tokens, self._lengths
        found, at, end = list[int](), 0, len(data)
        while at < end:
            for length in lengths.get(data[at : at + HEAD], ()):
                token = tokens.get(data[at : at + length])
                if token is not None and at + length <= end:
                    break
            else:
                length = 1
                token = tokens[data[at : at + 1]]
            found.append(token)
            at += length
        return found
