"""Cuts a text into windows of equal length, as llama.cpp's tools that measure on a text do.

The text is encoded whole; each run of so many tokens is a window of its own, and what is left over at the end is not
used. Where the tokenizer begins a text with BOS, that takes the place of each window's first token.
"""

from typing import NamedTuple, Protocol

from sporelm.errors import RequestError


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]: ...


class Cut(NamedTuple):
    """Token ids by window, and how many tokens the text had."""

    windows: tuple[tuple[int, ...], ...]
    tokens: int


def windows_of(tokenizer: Encoder, text: str, size: int, max_tokens: int | None = None) -> Cut:
    """The windows of `size` tokens of a text (of its first `max_tokens` tokens), which is taken as data: markup of
    special tokens in it means nothing. Raises RequestError for less than one window."""
    ids = tokenizer.encode(text, add_special_tokens=True, parse_special=False)[:max_tokens]
    if len(ids) < size:
        raise RequestError(
            f"{len(ids)} tokens are too few: at least one window of {size} is needed; give a longer text"
        )
    bos = begin_token(tokenizer)
    windows = []
    for start in range(0, len(ids) - size + 1, size):
        window = ids[start : start + size]
        windows.append(tuple(window if bos is None else [bos, *window[1:]]))
    return Cut(tuple(windows), len(ids))


def begin_token(tokenizer: Encoder) -> int | None:
    """The token that the tokenizer puts before a text, or None."""
    with_special = tokenizer.encode("a", add_special_tokens=True, parse_special=False)
    plain = tokenizer.encode("a", add_special_tokens=False, parse_special=False)
    return with_special[0] if with_special[:1] != plain[:1] else None
