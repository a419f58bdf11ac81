"""From token ids to the bytes they stand for."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from sporelm.errors import ModelFileError
from sporelm.text.library_reasons import in_words


def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that stands for it in byte-level vocabularies (GPT-2's table).

    Printable bytes of Latin-1 stand for themselves; the others, in order, for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


SPACE = "▁"  # a space, in vocabularies written in characters
NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})  # bytes that no text holds
BYTE_OF_CHARACTER = {character: byte for byte, character in byte_alphabet().items()}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bytes_of_byte_level(text: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary; a token with other characters is taken as plain text."""
    try:
        return bytes(map(BYTE_OF_CHARACTER.__getitem__, text))
    except KeyError:
        return text.encode("utf-8", "replace")


def bytes_of_sentencepiece(text: str, *, byte_tokens: bool = True) -> bytes:
    """The bytes of a token that writes a space as ▁ and, where `byte_tokens`, a lone byte as <0x0A>."""
    if byte_tokens and (match := _BYTE_TOKEN.fullmatch(text)):
        return bytes([int(match[1], 16)])
    return text.replace(SPACE, " ").encode("utf-8", "replace")


def missing_bytes(known: Callable[[str], bool]) -> bytes:
    """The bytes of UTF-8 texts that no token of a byte-level vocabulary stands for; `known` says what a token is."""
    return bytes(b for b, character in byte_alphabet().items() if b not in NEVER_IN_UTF8 and not known(character))


class Decoding(Protocol):
    """How ids become text."""

    leading_spaces: int  # how many spaces are taken from the beginning of a text

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for; empty for an id that no token has."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """What the tokens stand for together, before leading spaces are taken away."""
        ...


class ByteDecoding:
    """Text is each token's own bytes, one after the other. Bytes that are not UTF-8 become U+FFFD."""

    def __init__(
        self,
        text_of: Callable[[int], str | None],
        convert: Callable[[str], bytes],
        *,
        plain: Iterable[int] = (),
        leading_spaces: int = 0,
    ) -> None:
        """`text_of` gives a token as the vocabulary writes it; `plain` are ids whose text means itself."""
        self.leading_spaces = leading_spaces
        self._text_of = text_of
        self._convert = convert
        self._plain = frozenset(plain)
        self._known: dict[int, bytes] = {}

    def token_bytes(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            text = self._text_of(token)
            if text is None:
                found = b""
            else:
                found = text.encode("utf-8", "replace") if token in self._plain else self._convert(text)
            self._known[token] = found
        return found

    def text(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")


class CleanedDecoding:
    """Text in which spaces before punctuation are taken away, as llama.cpp does for WordPiece (llama-vocab.cpp)."""

    def __init__(self, raw: ByteDecoding) -> None:
        self.raw = raw
        self.leading_spaces = raw.leading_spaces

    def token_bytes(self, token: int) -> bytes:
        return self.raw.token_bytes(token)

    def text(self, tokens: Sequence[int]) -> str:
        return cleaned(self.raw.text(tokens))


_BEFORE_MARK = re.compile(" ([?!.,])")
_BEFORE_ENDING = re.compile(" ('(?:s|m|re|ve))")


def cleaned(text: str) -> str:
    """`text` without the spaces that cutting it into words put before marks, around apostrophes and before endings."""
    return _BEFORE_ENDING.sub(r"\1", _BEFORE_MARK.sub(r"\1", text).replace(" ' ", "'"))


def clean_until(text: str) -> int:
    """How much of `text` is cleaned the same whatever follows.

    What changes begins at a space or an apostrophe and reaches at most three characters beyond: it does not reach over
    four other characters, nor from another character over the space that follows it.
    """
    match = _SETTLED.match(text)
    return match.end() if match else 0


_SETTLED = re.compile("(?s).*(?:[^ ']{4}|[^ '](?= ))")


class LibraryDecoding:
    """Text as the `tokenizers` library decodes it, for vocabularies whose tokens depend on their neighbours."""

    leading_spaces = 0

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def token_bytes(self, token: int) -> bytes:
        return self.text([token]).encode("utf-8", "replace")

    def text(self, tokens: Sequence[int]) -> str:
        try:
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
        except OverflowError:  # an id beyond 32 bits is no token's
            return ""
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of the library is a BaseException
            raise ModelFileError(f"the tokenizer fails on tokens: {in_words(str(error))}") from None
