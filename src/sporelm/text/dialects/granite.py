"""Granite 3 and Phi-4-mini: <|tool_call|> and a list of calls.

Reasoning may be followed by <response>...</response>.
"""

import json
from collections.abc import Iterable, Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.source import Steps

ENDS = ("<|/tool_call|>", "</tool_call>")


class Granite(Dialect):
    name = "granite"
    marks = ("<|tool_call|>", "<tool_call>", *ENDS, "<response>", "</response>")
    begins = ("<|tool_call|>", "<tool_call>")

    def openers(self, turn: Turn) -> Iterable[str]:
        return (*super().openers(turn), "<response>")

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        if mark == "<response>":
            return (yield from self._response(turn))
        if not (yield from read_calls(turn)):
            return False
        yield from turn.source.skip(*ENDS)
        return True

    def _response(self, turn: Turn) -> Steps[bool]:
        """What is said after reasoning, calls too; the mark means nothing elsewhere."""
        if not (turn.out.reasoned and turn.out.blank):
            return False
        turn.source.release()
        turn.out.block()
        while True:
            mark = yield from turn.source.until((*super().openers(turn), "</response>"), turn.out.content)
            if mark in (None, "</response>"):
                turn.out.block()
                return True
            yield from turn.attempt(self.call(turn, mark or ""), mark or "")

    def written(self, calls: Sequence[Call]) -> str:
        objects = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return f"<|tool_call|>[{', '.join(objects)}]"

    def forced(self, forms: Forms) -> Expression:
        return forms.sequence("<|tool_call|>", forms.json_call("arguments", many=True))
