"""Dialects whose calls stand in a section: its mark, calls with a mark each, and its end."""

from abc import abstractmethod
from typing import ClassVar

from sporelm.text.dialects.dialect import Dialect, Turn
from sporelm.text.dialects.source import Steps


class Sectioned(Dialect):
    """A call may also come without its section. A subclass reads what follows a call's mark."""

    section: ClassVar[tuple[str, str]]  # the marks of its beginning and its end
    call_mark: ClassVar[str]

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        begin, end = self.section
        if mark == begin and not (yield from turn.source.skip(self.call_mark)):
            return False
        if not (yield from self.one(turn)):
            return False
        while (yield from turn.source.skip(self.call_mark)):
            if not (yield from turn.attempt(self.one(turn), self.call_mark)):
                return True
        yield from turn.source.skip(end)
        return True

    @abstractmethod
    def one(self, turn: Turn) -> Steps[bool]:
        """Read a call after its mark; False if there is none."""
