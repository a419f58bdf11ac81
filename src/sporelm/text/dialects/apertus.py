"""Apertus: <|tools_prefix|>[{"name": {...}}, ...]<|tools_suffix|>, reasoning between the markers of inner."""

import json
from collections.abc import Sequence

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import Dialect, ParserState, Thinking
from sporelm.text.dialects.json_calls import object_arguments
from sporelm.text.dialects.json_stream import read_string
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps

BEGIN, END = "<|tools_prefix|>", "<|tools_suffix|>"
INNER = Thinking("<|inner_prefix|>", "<|inner_suffix|>", anywhere=True)


class Apertus(Dialect):
    name = "apertus"
    markers = (BEGIN, END)
    start_markers = (BEGIN,)

    def __init__(self, thinking: Thinking | None = INNER) -> None:
        super().__init__(thinking)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        source = state.source
        yield from source.skip("[")
        if not (yield from self._parse_one(state)):
            return False
        while (yield from source.skip(",", "]")) == ",":
            if not (yield from state.attempt(self._parse_one(state))):
                return True
        yield from source.skip(END)
        return True

    def _parse_one(self, state: ParserState) -> Steps[bool]:
        """An object of one key: the name, and the arguments as its value."""
        source = state.source
        if not (yield from source.skip("{")):
            return False
        yield from source.space()
        name = (yield from read_string(source)) if (yield from source.peek()) == '"' else None
        if not name or not (yield from source.skip(":")) or not (yield from object_arguments(state, name)):
            return False
        yield from source.skip("}")
        return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return f"{BEGIN}[{', '.join(f'{{{json.dumps(call.name)}: {call.arguments}}}' for call in calls)}]{END}"

    def build_calls(self, lark: LarkBuilder) -> Expression:
        one = lark.each(lambda tool: lark.sequence(f'{{"{tool.name}": ', lark.json(lark.schema(tool)), "}"))
        return lark.sequence(BEGIN + "[", lark.many(one, ", "), "]" + END)
