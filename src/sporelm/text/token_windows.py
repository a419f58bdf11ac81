"""Splits a text into windows of equal length, as llama.cpp's perplexity and imatrix tools do.

The text is encoded as a whole; each run of `size` tokens is a window, and the remainder at the end is not used. If the
tokenizer adds BOS to a text, BOS replaces the first token of each window.
"""

from typing import NamedTuple, Protocol

from sporelm.errors import RequestError


class TextEncoder(Protocol):
    """The part of a tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]: ...


class TokenWindows(NamedTuple):
    """Token ids by window, and the number of tokens of the text."""

    windows: tuple[tuple[int, ...], ...]
    tokens: int


def split_into_windows(tokenizer: TextEncoder, text: str, size: int, max_tokens: int | None = None) -> TokenWindows:
    """Return the windows of `size` tokens of a text, or of its first `max_tokens` tokens. Special tokens are not parsed
    in it. Raises RequestError for less than one window."""
    ids = tokenizer.encode(text, add_special_tokens=True, parse_special=False)[:max_tokens]
    if len(ids) < size:
        raise RequestError(
            f"{len(ids)} tokens are too few: at least one window of {size} is needed; give a longer text"
        )
    bos = find_bos_token(tokenizer)
    windows = []
    for start in range(0, len(ids) - size + 1, size):
        window = ids[start : start + size]
        windows.append(tuple(window if bos is None else [bos, *window[1:]]))
    return TokenWindows(tuple(windows), len(ids))


def find_bos_token(tokenizer: TextEncoder) -> int | None:
    """Return the token that the tokenizer puts before a text, or None."""
    with_special = tokenizer.encode("a", add_special_tokens=True, parse_special=False)
    plain = tokenizer.encode("a", add_special_tokens=False, parse_special=False)
    return with_special[0] if with_special[:1] != plain[:1] else None
