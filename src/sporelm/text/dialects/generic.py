"""For models whose template says nothing of calls: what models do most. <tool_call>, or JSON of its own line or fence.

JSON without a mark is a call only at the beginning of a line, if its first key is one that calls have and its name is
that of a tool; so is a list of Python's calls.
"""

import json
import re
from collections.abc import Sequence

from sporelm.text.dialects.bare import read_bare
from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.hermes import Hermes
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.python_call import read_python
from sporelm.text.dialects.source import Steps

FENCE = "```"
_WORD = re.compile(r"\w{0,32}")


class Generic(Hermes):
    name = "generic"
    begins = ("<tool_call>", "{", "[", FENCE)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        if mark == "<tool_call>":
            return (yield from super().call(turn, mark))
        if mark != FENCE:
            return (yield from read_bare(turn, mark, (";", ",")))
        if not turn.out.line_blank:
            return False
        word = turn.source.take(len((yield from turn.source.ahead(_WORD))))
        yield from turn.source.space()
        if (yield from turn.source.peek()) in ("{", "["):
            found = yield from read_calls(turn, bare=True, between=(";", ","))
            if found:
                yield from turn.source.skip(FENCE)
            return found
        return word in ("tool_code", "tool_call") and (yield from read_python(turn, (FENCE,)))


class Gemma(Generic):
    """Gemma 2 and 3, as Google describes it: {"name": ..., "parameters": {...}}, or Python in a fence of tool_code."""

    name = "gemma"

    def written(self, calls: Sequence[Call]) -> str:
        return "\n".join(f'{{"name": {json.dumps(call.name)}, "parameters": {call.arguments}}}' for call in calls)

    def forced(self, forms: Forms) -> Expression:
        return forms.json_call("parameters")
