"""Calls without a marker before them, at the beginning of a line: JSON, or a list of Python's calls."""

from collections.abc import Sequence

from sporelm.text.dialects.dialect import ParserState
from sporelm.text.dialects.json_calls import read_calls
from sporelm.text.dialects.python_stream import read_list
from sporelm.text.dialects.stream_source import Steps


def read_bare_calls(state: ParserState, bracket: str, between: Sequence[str]) -> Steps[bool]:
    """Read calls of known tools after their first bracket; False without a call, or after other text in the line.

    between    what may stand between JSON objects
    """
    if not state.writer.is_line_blank:
        return False
    source = state.source
    place = source.hold(len(bracket))
    yield from source.space()
    if bracket == "[" and (yield from source.peek()) != "{":
        return (yield from read_list(state, bare=True))
    source.back_to(place)
    return (yield from read_calls(state, bare=True, between=between))
