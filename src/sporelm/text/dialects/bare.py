"""Calls without a mark before them, at the beginning of a line: JSON, or a list of Python's calls."""

from collections.abc import Sequence

from sporelm.text.dialects.dialect import Turn
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.python_text import read_list
from sporelm.text.dialects.source import Steps


def read_bare(turn: Turn, bracket: str, between: Sequence[str]) -> Steps[bool]:
    """Calls after their first bracket, of tools alone; False if there is none, or the line began with something else.

    between    what may stand between JSON objects
    """
    if not turn.out.line_blank:
        return False
    source = turn.source
    place = source.hold(len(bracket))
    yield from source.space()
    if bracket == "[" and (yield from source.peek()) != "{":
        return (yield from read_list(turn, bare=True))
    source.back_to(place)
    return (yield from read_calls(turn, bare=True, between=between))
