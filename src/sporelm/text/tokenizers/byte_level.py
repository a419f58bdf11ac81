"""How vocabularies write bytes and spaces: GPT-2's byte-level alphabet, and SentencePiece's ▁ and <0x0A>."""

import re
from collections.abc import Callable, Mapping


def byte_alphabet() -> dict[int, str]:
    """Return byte -> the printable character that stands for it in byte-level vocabularies (GPT-2's table).

    Printable bytes of Latin-1 stand for themselves; the others, in order, for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


SPACE = "▁"  # a space, in vocabularies written in characters
NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})  # bytes that valid UTF-8 never contains
BYTE_OF_CHARACTER = {character: byte for byte, character in byte_alphabet().items()}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def decode_byte_level(text: str) -> bytes:
    """Return the bytes of a token of a byte-level vocabulary; a token with other characters is taken as plain text."""
    try:
        return bytes(map(BYTE_OF_CHARACTER.__getitem__, text))
    except KeyError:
        return text.encode("utf-8", "replace")


def decode_sentencepiece(text: str, *, byte_tokens: bool = True) -> bytes:
    """Return the bytes of a token that writes a space as ▁ and, with `byte_tokens`, a single byte as <0x0A>."""
    if byte_tokens and (match := _BYTE_TOKEN.fullmatch(text)):
        return bytes([int(match[1], 16)])
    return text.replace(SPACE, " ").encode("utf-8", "replace")


def find_missing_bytes(is_token: Callable[[str], bool]) -> bytes:
    """Return the bytes of UTF-8 texts that a byte-level vocabulary has no token for."""
    return bytes(b for b, character in byte_alphabet().items() if b not in NEVER_IN_UTF8 and not is_token(character))


def make_byte_fallback(ids: Mapping[str, int], unknown: int | None) -> Callable[[str], tuple[int, ...]]:
    """Return a function that encodes a character without a token: a token for each of its bytes, or the unknown token
    where a byte has none."""
    table = [ids.get(f"<0x{byte:02X}>", ids.get(chr(byte)) if byte < 128 else None) for byte in range(256)]
    replacement = () if unknown is None else (unknown,)

    def encode_bytes(character: str) -> tuple[int, ...]:
        tokens = [table[byte] for byte in character.encode()]
        return replacement if None in tokens else tuple(token for token in tokens if token is not None)

    return encode_bytes
