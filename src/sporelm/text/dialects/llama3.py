"""Llama 3.1 to 3.3: a bare {"name": ..., "parameters": {...}}, or after <|python_tag|>, several with ; between.

After <|python_tag|> there may also be name.call(argument="value"), where the name is that of a tool; and a bare
[name(argument="value"), ...] at the beginning of a line.
"""

import json
from collections.abc import Sequence

from sporelm.text.dialects.bare_calls import read_bare_calls
from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import Dialect, ParserState
from sporelm.text.dialects.json_calls import read_calls
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.python_calls import read_python_calls
from sporelm.text.dialects.stream_source import Steps


class Llama3(Dialect):
    name = "llama3"
    markers = ("<|python_tag|>",)
    start_markers = ("<|python_tag|>", "{", "[")

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        if marker in ("{", "["):
            return (yield from read_bare_calls(state, marker, (";",)))
        yield from state.source.space()
        if (yield from state.source.peek()) in ("{", "["):
            return (yield from read_calls(state, between=(";",)))
        return (yield from read_python_calls(state, ()))

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(f'{{"name": {json.dumps(call.name)}, "parameters": {call.arguments}}}' for call in calls)

    def build_calls(self, lark: LarkBuilder) -> Expression:
        return lark.json_call("parameters")
