"""Text that arrives in pieces of any size, for parsers that read it as one text.

A parser is a generator. If it needs text that has not arrived yet, it yields; its caller resumes it when there is more.
Its result depends on the text alone, never on the boundaries of the pieces.
"""

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # a part of a parser: yields to wait for more text, returns a T
Emit = Callable[[str], None]

SPACE = re.compile(r"\s*")


class TextSource:
    """The text, and the position in it. Methods that return Steps wait for text; the end of the text is \"\"."""

    def __init__(self) -> None:
        self.ended = False
        self.in_call = False  # then an incomplete marker at the end of the text is not content
        self._is_marker_cut = False  # the text has ended in an incomplete marker
        self._text = ""
        self._at = 0
        self._base = 0  # number of characters dropped before the text
        self._hold_start: int | None = None  # text from this position on is kept

    def append(self, text: str) -> None:
        """Append more text. Changes the source."""
        drop = self._at if self._hold_start is None else min(self._hold_start - self._base, self._at)
        self._text = self._text[drop:] + text
        self._at -= drop
        self._base += drop

    def hold(self, length: int = 0) -> int:
        """Keep the following text, and the last `length` characters read. Return the position, for `back_to`."""
        position = self._base + self._at - length
        self._hold_start = position if self._hold_start is None else min(self._hold_start, position)
        return position

    def release(self) -> None:
        """Stop keeping text."""
        self._hold_start = None

    def since(self, position: int) -> str:
        """Return the text read since a held position."""
        return self._text[position - self._base : self._at]

    def back_to(self, position: int) -> None:
        """Go back to a held position."""
        self._at = position - self._base

    def take(self, length: int = 1) -> str:
        """Read characters that are known to have arrived."""
        self._at += length
        return self._text[self._at - length : self._at]

    def run(self, pattern: re.Pattern[str]) -> str:
        """Read the arrived text that matches a pattern, without waiting for more."""
        match = pattern.match(self._text, self._at)
        return self.take(len(match[0])) if match else ""

    def ensure(self, length: int) -> Steps[str]:
        """Return the next `length` characters without reading them; fewer at the end of the text."""
        while len(self._text) - self._at < length and not self.ended:
            yield
        return self._text[self._at : self._at + length]

    def peek(self) -> Steps[str]:
        """Return the next character without reading it."""
        return (yield from self.ensure(1))

    def ahead(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Return the longest match of a pattern here without reading it: wait for its end, or that of the text."""
        while True:
            match = pattern.match(self._text, self._at)
            stops = self._at < len(self._text) and (match is None or match.end() < len(self._text))
            if stops or self.ended:
                return match[0] if match else ""
            yield

    def space(self) -> Steps[str]:
        """Read white space, if there is any."""
        spaces = ""
        while True:
            spaces += self.run(SPACE)
            if self._at < len(self._text) or self.ended:
                return spaces
            yield

    def which(self, markers: Sequence[str]) -> Steps[str | None]:
        """Read the longest of several markers that matches here. Return None, and read nothing, if none does."""
        while True:
            available = self._text[self._at : self._at + max(map(len, markers), default=0)]
            longest = max((marker for marker in markers if available.startswith(marker)), key=len, default=None)
            is_partial = any(len(marker) > len(available) and marker.startswith(available) for marker in markers)
            if is_partial and self.ended and self.in_call and available:
                self.take(len(available))
                self._is_marker_cut = True
            if self.ended or not is_partial:
                return self.take(len(longest)) if longest else None
            yield

    def literal(self, marker: str) -> Steps[bool]:
        """Read a marker, if it is here. Return whether it is."""
        return (yield from self.which((marker,))) is not None

    def skip(self, *markers: str) -> Steps[str | None]:
        """Read white space and then one of several markers; read nothing if none follows."""
        previous_hold = self._hold_start
        position = self.hold()
        yield from self.space()
        marker = yield from self.which(markers)
        if marker is None and not self._is_marker_cut:
            self.back_to(position)
        self._hold_start = previous_hold
        return marker

    def until(self, markers: tuple[str, ...], emit: Emit) -> Steps[str | None]:
        """Emit text up to the first of several markers, and read and return the marker; None at the end of the text.

        Only text that could still become a marker is held back. No marker may be a prefix of another.
        """
        pattern = _compile_markers(markers)
        while True:
            match = pattern.search(self._text, self._at) if markers else None
            end = match.start() if match else len(self._text) - (0 if self.ended else self._count_partial(markers))
            if end > self._at:
                emit(self.take(end - self._at))
            if match:
                return self.take(len(match[0]))
            if self.ended:
                return None
            yield

    def _count_partial(self, markers: tuple[str, ...]) -> int:
        """Return the number of characters at the end of the text that may begin a marker."""
        longest = min(max(map(len, markers), default=1) - 1, len(self._text) - self._at)
        for length in range(longest, 0, -1):
            tail = self._text[-length:]
            if any(marker.startswith(tail) for marker in markers):
                return length
        return 0


@lru_cache(maxsize=64)
def _compile_markers(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(marker) for marker in markers))
