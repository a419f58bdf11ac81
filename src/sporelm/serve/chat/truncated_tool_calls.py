"""Tool calls that an answer's end cuts before their name is known: where a grammar requires calls, such text is not
content."""

from collections.abc import Sequence

from sporelm.text.dialects import AnswerParser, CallStart, Content, Delta

MIN_DELIMITER = 2  # characters of a delimiter; a single bracket can begin content too


class TruncatedCallFilter:
    """A parser for an answer that a grammar holds to calls, or to calls or content of a form. It drops content that can
    only be the beginning of a call."""

    def __init__(self, parser: AnswerParser, delimiters: Sequence[str], *, must_call: bool, is_json: bool) -> None:
        """
        delimiters  those of the dialect
        must_call   whether the grammar allows no content
        is_json     whether content is JSON, and so begins like no delimiter
        """
        self._parser = parser
        self._is_json = is_json
        self._delimiters = tuple(each for each in delimiters if len(each) >= MIN_DELIMITER)
        self._has_calls: bool | None = True if must_call else None  # None: not known yet

    @property
    def in_reasoning(self) -> bool:
        """Whether the text pushed last ended inside reasoning."""
        return self._parser.in_reasoning

    def push(self, text: str) -> list[Delta]:
        """Return the deltas of more text."""
        return self._without_truncated_calls(self._parser.push(text), is_end=False)

    def finish(self) -> list[Delta]:
        """Return the deltas that were held back, at the end of the text."""
        return self._without_truncated_calls(self._parser.finish(), is_end=True)

    def _without_truncated_calls(self, deltas: list[Delta], *, is_end: bool) -> list[Delta]:
        remaining: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, CallStart):
                self._has_calls = True
            elif isinstance(delta, Content):
                if self._has_calls is None and (text := delta.text.strip()):
                    self._has_calls = self._is_call(text, is_end)
                if self._has_calls:
                    continue
            remaining.append(delta)
        return remaining

    def _is_call(self, text: str, is_end: bool) -> bool:
        """Return whether text that the parser takes for content begins a call: it starts with a delimiter, or, at the
        end of the answer, with a part of one that does not begin JSON."""
        if text.startswith(self._delimiters):
            return True
        may_be_part = is_end and self._is_json and text not in ("[", "{")
        return may_be_part and any(delimiter.startswith(text) for delimiter in self._delimiters)
