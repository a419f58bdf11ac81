"""Calls that an answer's end cuts before their name is known: where a grammar held the answer to them, they are no
content."""

from collections.abc import Sequence

from sporelm.text.dialects import CallBegun, Content, Delta, Parser

BARE = 2  # characters of a mark, from which on it is no mere bracket, with which content may begin too


class WithoutCutCalls:
    """A parser of an answer that a grammar holds to calls, or to calls or content of a form; it gives out no content
    that can only be a part of a call."""

    def __init__(self, parser: Parser, marks: Sequence[str], *, must_call: bool, json: bool) -> None:
        """
        marks      those of the dialect
        must_call  whether there is no content at all
        json       whether content is JSON, and so begins as no mark does
        """
        self._parser, self._json = parser, json
        self._marks = tuple(mark for mark in marks if len(mark) >= BARE)
        self._calls: bool | None = True if must_call else None  # whether the answer is calls; None: not known yet

    @property
    def reasons(self) -> bool:
        """Whether what was pushed last ended inside of reasoning."""
        return self._parser.reasons

    def push(self, text: str) -> list[Delta]:
        """What follows from some more text."""
        return self._without(self._parser.push(text), ended=False)

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the text."""
        return self._without(self._parser.finish(), ended=True)

    def _without(self, deltas: list[Delta], *, ended: bool) -> list[Delta]:
        kept: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, CallBegun):
                self._calls = True
            elif isinstance(delta, Content):
                if self._calls is None and (said := delta.text.strip()):
                    self._calls = self._is_call(said, ended)
                if self._calls:
                    continue
            kept.append(delta)
        return kept

    def _is_call(self, said: str, ended: bool) -> bool:
        """Whether the beginning of an answer that the parser takes for content is that of a call: it has a mark, or,
        at the end, a part of one with which no JSON begins."""
        part = ended and self._json and said not in ("[", "{")
        return said.startswith(self._marks) or (part and any(mark.startswith(said) for mark in self._marks))
