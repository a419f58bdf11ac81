"""Apertus: <|tools_prefix|>[{"name": {...}}, ...]<|tools_suffix|>, reasoning between the marks of inner."""

import json
from collections.abc import Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import object_arguments
from sporelm.text.dialects.json_text import read_string
from sporelm.text.dialects.source import Steps

BEGIN, END = "<|tools_prefix|>", "<|tools_suffix|>"
INNER = Thinking("<|inner_prefix|>", "<|inner_suffix|>", anywhere=True)


class Apertus(Dialect):
    name = "apertus"
    marks = (BEGIN, END)
    begins = (BEGIN,)

    def __init__(self, thinking: Thinking | None = INNER) -> None:
        super().__init__(thinking)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        source = turn.source
        yield from source.skip("[")
        if not (yield from self._one(turn)):
            return False
        while (yield from source.skip(",", "]")) == ",":
            if not (yield from turn.attempt(self._one(turn))):
                return True
        yield from source.skip(END)
        return True

    def _one(self, turn: Turn) -> Steps[bool]:
        """An object of one key: the name, and the arguments as its value."""
        source = turn.source
        if not (yield from source.skip("{")):
            return False
        yield from source.space()
        name = (yield from read_string(source)) if (yield from source.peek()) == '"' else None
        if not name or not (yield from source.skip(":")) or not (yield from object_arguments(turn, name)):
            return False
        yield from source.skip("}")
        return True

    def written(self, calls: Sequence[Call]) -> str:
        return f"{BEGIN}[{', '.join(f'{{{json.dumps(call.name)}: {call.arguments}}}' for call in calls)}]{END}"

    def forced(self, forms: Forms) -> Expression:
        one = forms.each(lambda tool: forms.sequence(f'{{"{tool.name}": ', forms.json(forms.schema(tool)), "}"))
        return forms.sequence(BEGIN + "[", forms.many(one, ", "), "]" + END)
