"""Text that arrives in pieces of any size, read by parsers that need not know of the pieces.

A parser is a generator. Where it needs text that has not come yet, it yields; its caller goes on with it when there is
more. What it does next depends on the text alone, never on where that was cut.
"""

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # a part of a parser: yields for more text, returns a T
Out = Callable[[str], None]

SPACE = re.compile(r"\s*")


class Source:
    """The text, and how much of it was read. Methods that are Steps wait for text; the end of the text is \"\"."""

    def __init__(self) -> None:
        self.ended = False
        self.in_call = False  # a mark that the text ends in is no content, then
        self._cut = False  # the text has ended in such a mark
        self._text = ""
        self._at = 0
        self._base = 0  # characters that were dropped before the text
        self._held: int | None = None  # what is read from here on is kept

    def append(self, text: str) -> None:
        """More text has come. Changes the source."""
        kept = self._at if self._held is None else min(self._held - self._base, self._at)
        self._text = self._text[kept:] + text
        self._at -= kept
        self._base += kept

    def hold(self, length: int = 0) -> int:
        """Keep what follows, and the last `length` characters that were read just now; a place to go back to."""
        place = self._base + self._at - length
        self._held = place if self._held is None else min(self._held, place)
        return place

    def release(self) -> None:
        """Keep nothing any more."""
        self._held = None

    def since(self, place: int) -> str:
        """What was read from a place that is held up to here."""
        return self._text[place - self._base : self._at]

    def back_to(self, place: int) -> None:
        """Read again from a place that is held."""
        self._at = place - self._base

    def take(self, length: int = 1) -> str:
        """Read characters that are known to be there."""
        self._at += length
        return self._text[self._at - length : self._at]

    def run(self, pattern: re.Pattern[str]) -> str:
        """Read what fits a pattern of what has come: for text that is passed on as it comes."""
        found = pattern.match(self._text, self._at)
        return self.take(len(found[0])) if found else ""

    def ensure(self, length: int) -> Steps[str]:
        """The next `length` characters, unread; fewer at the end of the text."""
        while len(self._text) - self._at < length and not self.ended:
            yield
        return self._text[self._at : self._at + length]

    def peek(self) -> Steps[str]:
        """The next character, unread."""
        return (yield from self.ensure(1))

    def ahead(self, pattern: re.Pattern[str]) -> Steps[str]:
        """What fits a pattern here, unread: all of it, so it waits for what no longer fits, or for the end."""
        while True:
            found = pattern.match(self._text, self._at)
            stops = self._at < len(self._text) and (found is None or found.end() < len(self._text))
            if stops or self.ended:
                return found[0] if found else ""
            yield

    def space(self) -> Steps[str]:
        """Read white space, if there is any."""
        read = ""
        while True:
            read += self.run(SPACE)
            if self._at < len(self._text) or self.ended:
                return read
            yield

    def which(self, marks: Sequence[str]) -> Steps[str | None]:
        """Read the one of several marks that comes here, the longest if several do; None, and read nothing, if none."""
        while True:
            have = self._text[self._at : self._at + max(map(len, marks), default=0)]
            found = max((mark for mark in marks if have.startswith(mark)), key=len, default=None)
            coming = any(len(mark) > len(have) and mark.startswith(have) for mark in marks)
            if coming and self.ended and self.in_call and have:
                self.take(len(have))
                self._cut = True
            if self.ended or not coming:
                return self.take(len(found)) if found else None
            yield

    def literal(self, mark: str) -> Steps[bool]:
        """Read a mark, if it comes here."""
        return (yield from self.which((mark,))) is not None

    def skip(self, *marks: str) -> Steps[str | None]:
        """Read white space and then one of several marks; nothing if none comes."""
        holding = self._held
        place = self.hold()
        yield from self.space()
        found = yield from self.which(marks)
        if found is None and not self._cut:
            self.back_to(place)
        self._held = holding
        return found

    def until(self, marks: tuple[str, ...], out: Out) -> Steps[str | None]:
        """Pass text on up to the first of several marks, and read that; None at the end of the text.

        What could still become a mark is held back, and nothing else. No mark may be the beginning of another.
        """
        pattern = _finder(marks)
        while True:
            found = pattern.search(self._text, self._at) if marks else None
            end = found.start() if found else len(self._text) - (0 if self.ended else self._coming(marks))
            if end > self._at:
                out(self.take(end - self._at))
            if found:
                return self.take(len(found[0]))
            if self.ended:
                return None
            yield

    def _coming(self, marks: tuple[str, ...]) -> int:
        """Characters at the end of the text that may be the beginning of a mark."""
        longest = min(max(map(len, marks), default=1) - 1, len(self._text) - self._at)
        for length in range(longest, 0, -1):
            tail = self._text[-length:]
            if any(mark.startswith(tail) for mark in marks):
                return length
        return 0


@lru_cache(maxsize=64)
def _finder(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(mark) for mark in marks))
