"""Llama 3.1 to 3.3: a bare {"name": ..., "parameters": {...}}, or after <|python_tag|>, several with ; between.

After <|python_tag|> there may also be name.call(argument="value"), where the name is that of a tool; and a bare
[name(argument="value"), ...] at the beginning of a line.
"""

import json
from collections.abc import Sequence

from sporelm.text.dialects.bare import read_bare
from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.python_call import read_python
from sporelm.text.dialects.source import Steps


class Llama3(Dialect):
    name = "llama3"
    marks = ("<|python_tag|>",)
    begins = ("<|python_tag|>", "{", "[")

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        if mark in ("{", "["):
            return (yield from read_bare(turn, mark, (";",)))
        yield from turn.source.space()
        if (yield from turn.source.peek()) in ("{", "["):
            return (yield from read_calls(turn, between=(";",)))
        return (yield from read_python(turn, ()))

    def written(self, calls: Sequence[Call]) -> str:
        return "; ".join(f'{{"name": {json.dumps(call.name)}, "parameters": {call.arguments}}}' for call in calls)

    def forced(self, forms: Forms) -> Expression:
        return forms.json_call("parameters")
