"""Granite 3 and Phi-4-mini: <|tool_call|> and a list of calls.

Reasoning may be followed by <response>...</response>.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import RESPONSE, THINK, Dialect, Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.source import Steps

ENDS = ("<|/tool_call|>", "</tool_call>")


class Granite(Dialect):
    name = "granite"
    marks = ("<|tool_call|>", "<tool_call>", *ENDS)
    begins = ("<|tool_call|>", "<tool_call>")

    def __init__(self, thinking: Thinking | None = THINK) -> None:
        super().__init__(replace(thinking, answer=RESPONSE) if thinking else None)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        if not (yield from read_calls(turn)):
            return False
        yield from turn.source.skip(*ENDS)
        return True

    def written(self, calls: Sequence[Call]) -> str:
        objects = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return f"<|tool_call|>[{', '.join(objects)}]"

    def forced(self, forms: Forms) -> Expression:
        return forms.sequence("<|tool_call|>", forms.json_call("arguments", many=True))
