"""Granite 3 and Phi-4-mini: <|tool_call|> and a list of calls.

Reasoning may be followed by <response>...</response>.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import RESPONSE, THINK, Dialect, ParserState, Thinking
from sporelm.text.dialects.json_calls import read_calls
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps

ENDS = ("<|/tool_call|>", "</tool_call>")


class Granite(Dialect):
    name = "granite"
    markers = ("<|tool_call|>", "<tool_call>", *ENDS)
    start_markers = ("<|tool_call|>", "<tool_call>")

    def __init__(self, thinking: Thinking | None = THINK) -> None:
        super().__init__(replace(thinking, answer=RESPONSE) if thinking else None)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        if not (yield from read_calls(state)):
            return False
        yield from state.source.skip(*ENDS)
        return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        objects = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return f"<|tool_call|>[{', '.join(objects)}]"

    def build_calls(self, lark: LarkBuilder) -> Expression:
        return lark.sequence("<|tool_call|>", lark.json_call("arguments", many=True))
