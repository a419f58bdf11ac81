"""Llama 4: [name(argument="value"), ...], between <|python_start|> and <|python_end|> or bare; or Llama 3's JSON."""

import json
import re
from collections.abc import Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.python_call import read_python
from sporelm.text.dialects.source import Steps

START, END = "<|python_start|>", "<|python_end|>"
NAME = re.compile(r"\s*[\w.-]*\s*\(?")  # with which a list of calls begins


class Llama4(Dialect):
    name = "llama4"
    marks = (START, END)
    begins = (START, "[", "{")

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        source = turn.source
        if mark != START:
            if not turn.out.line_blank:
                return False
            source.back_to(source.hold(1))
            return (yield from self._calls(turn, bare=True))
        yield from source.space()
        found = yield from self._calls(turn, bare=False)
        if found:
            yield from source.skip(END)
        return found

    def _calls(self, turn: Turn, *, bare: bool) -> Steps[bool]:
        """JSON, or a list; `bare`: no mark was before it, so that it must begin with a tool."""
        source = turn.source
        place = source.hold()
        if (yield from source.peek()) == "[":
            source.take()
            begun = yield from source.ahead(NAME)
            if begun.endswith("(") and (not bare or begun[:-1].strip() in turn.tools):
                return (yield from read_python(turn, ("]",)))
            source.back_to(place)
        elif not bare and (yield from source.peek()) != "{":
            return (yield from read_python(turn, (END,)))
        return (yield from read_calls(turn, bare=bare, between=(";",)))

    def written(self, calls: Sequence[Call]) -> str:
        parts = []
        for call in calls:
            values = json.loads(call.arguments)
            given = ", ".join(f"{name}={value!r}" for name, value in values.items())
            parts.append(f"{call.name}({given})")
        return f"[{', '.join(parts)}]"

    def forced(self, forms: Forms) -> Expression:
        return forms.json_call("parameters")
