"""Hermes 2 and 3, Qwen 2.5 and 3, Granite 4 and many more: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from sporelm.text.dialects.dialect import Dialect, ParserState
from sporelm.text.dialects.json_calls import read_calls
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps


class Hermes(Dialect):
    name = "hermes"
    markers: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    start_markers: tuple[str, ...] = ("<tool_call>",)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        if not (yield from read_calls(state)):
            return False
        yield from state.source.skip("</tool_call>")
        return True

    def build_calls(self, lark: LarkBuilder) -> Expression:
        return lark.many(lark.sequence("<tool_call>\n", lark.json_call("arguments"), "\n</tool_call>"), "\n")
