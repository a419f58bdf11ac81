"""Dialects whose calls stand in a section: its marker, calls with a marker each, and its end."""

from abc import abstractmethod
from typing import ClassVar

from sporelm.text.dialects.dialect import Dialect, ParserState
from sporelm.text.dialects.stream_source import Steps


class Sectioned(Dialect):
    """A call may also come without its section. A subclass reads what follows a call's marker."""

    section: ClassVar[tuple[str, str]]  # the markers of its beginning and its end
    call_mark: ClassVar[str]

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        begin, end = self.section
        if marker == begin and not (yield from state.source.skip(self.call_mark)):
            return False
        if not (yield from self.parse_one(state)):
            return False
        while (yield from state.source.skip(self.call_mark)):
            if not (yield from state.attempt(self.parse_one(state), self.call_mark)):
                return True
        yield from state.source.skip(end)
        return True

    @abstractmethod
    def parse_one(self, state: ParserState) -> Steps[bool]:
        """Read a call after its marker; False if there is none."""
