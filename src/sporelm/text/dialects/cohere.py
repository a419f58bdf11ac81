"""Command R7B and later: <|START_ACTION|> and a list of {"tool_call_id", "tool_name", "parameters"}, <|END_ACTION|>.

What is said stands between <|START_RESPONSE|> and its end, or the same with TEXT; reasoning between the marks of
THINKING.
"""

import json
from collections.abc import Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.source import Steps

BEGIN, END = "<|START_ACTION|>", "<|END_ACTION|>"
FRAMES = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
ACTIONS = Thinking("<|START_THINKING|>", "<|END_THINKING|>", anywhere=True)


class Cohere(Dialect):
    name = "cohere"
    marks = (BEGIN, END)
    begins = (BEGIN,)
    frames = FRAMES

    def __init__(self, thinking: Thinking | None = ACTIONS) -> None:
        super().__init__(thinking)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        if not (yield from read_calls(turn)):
            return False
        yield from turn.source.space()
        yield from turn.source.skip("]")
        yield from turn.source.skip(END)
        return True

    def written(self, calls: Sequence[Call]) -> str:
        objects = ",\n    ".join(
            f'{{"tool_call_id": "{index}", "tool_name": {json.dumps(call.name)}, "parameters": {call.arguments}}}'
            for index, call in enumerate(calls)
        )
        return f"{BEGIN}[\n    {objects}\n]{END}"

    def forced(self, forms: Forms) -> Expression:
        return forms.sequence(BEGIN, forms.json_call("parameters", name="tool_name", many=True), END)

    def framed(self, forms: Forms, content: Expression) -> Expression:
        return forms.sequence(FRAMES[0], content, FRAMES[1])
