"""Llama 4: [name(argument="value"), ...], between <|python_start|> and <|python_end|> or bare; or Llama 3's JSON."""

from collections.abc import Sequence

from sporelm.text.dialects.bare_calls import read_bare_calls
from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import Dialect, ParserState, Thinking
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.python_stream import build_call, format_call, read_call
from sporelm.text.dialects.stream_source import Steps

START, END = "<|python_start|>", "<|python_end|>"


class Llama4(Dialect):
    name = "llama4"
    markers = (START, END)
    start_markers = (START, "[", "{")

    def __init__(self, thinking: Thinking | None = None, *, lists: bool = False) -> None:
        """lists: a forced call is a list of Python calls; otherwise JSON."""
        super().__init__(thinking)
        self.lists = lists

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        source = state.source
        if marker != START:
            return (yield from read_bare_calls(state, marker, (";",)))
        bracket = yield from source.skip("[", "{")
        if bracket:
            state.writer.block()  # what the marker begins is a line of its own
            found = yield from read_bare_calls(state, bracket, (";",))
        else:
            yield from source.space()
            found = yield from read_call(state, bare=True)
        if found:
            yield from source.skip(END)
        return found

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return f"[{', '.join(format_call(call) for call in calls)}]"

    def build_calls(self, lark: LarkBuilder) -> Expression:
        if self.lists:
            return lark.sequence("[", lark.many(build_call(lark), ", "), "]")
        return lark.json_call("parameters")
