"""Command R7B and later: <|START_ACTION|> and a list of {"tool_call_id", "tool_name", "parameters"}, <|END_ACTION|>.

What is said stands between <|START_RESPONSE|> and its end, or the same with TEXT; reasoning between the markers of
THINKING.
"""

import json
from collections.abc import Sequence

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import Dialect, ParserState, Thinking
from sporelm.text.dialects.json_calls import read_calls
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps

BEGIN, END = "<|START_ACTION|>", "<|END_ACTION|>"
FRAMES = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
ACTIONS = Thinking("<|START_THINKING|>", "<|END_THINKING|>", anywhere=True)


class Cohere(Dialect):
    name = "cohere"
    markers = (BEGIN, END)
    start_markers = (BEGIN,)
    frame_markers = FRAMES

    def __init__(self, thinking: Thinking | None = ACTIONS) -> None:
        super().__init__(thinking)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        if not (yield from read_calls(state)):
            return False
        yield from state.source.space()
        yield from state.source.skip("]")
        yield from state.source.skip(END)
        return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        objects = ",\n    ".join(
            f'{{"tool_call_id": "{index}", "tool_name": {json.dumps(call.name)}, "parameters": {call.arguments}}}'
            for index, call in enumerate(calls)
        )
        return f"{BEGIN}[\n    {objects}\n]{END}"

    def build_calls(self, lark: LarkBuilder) -> Expression:
        return lark.sequence(BEGIN, lark.json_call("parameters", name="tool_name", many=True), END)

    def wrap_content(self, lark: LarkBuilder, content: Expression) -> Expression:
        return lark.sequence(FRAMES[0], content, FRAMES[1])
