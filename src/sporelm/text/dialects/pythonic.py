"""Calls as a list of Python's: [name(key="value", other=1), ...] between markers, or in lines of their own."""

from collections.abc import Sequence

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import Dialect, ParserState
from sporelm.text.dialects.json_calls import read_calls
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.python_stream import build_call, format_call, read_call, read_list
from sporelm.text.dialects.stream_source import Steps


class Lfm2(Dialect):
    """LFM2 and LFM2.5: <|tool_call_start|>[name(key="value")]<|tool_call_end|>; JSON, if they were asked for it."""

    name = "lfm2"
    markers = ("<|tool_call_start|>", "<|tool_call_end|>")
    start_markers = ("<|tool_call_start|>",)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        source = state.source
        bracket = yield from source.skip("[")
        yield from source.space()
        if (yield from source.peek()) == "{":
            found = yield from read_calls(state, between=(",",))
            yield from source.skip("]")
        else:
            found = (yield from read_list(state)) if bracket else (yield from read_call(state))
        if found:
            yield from source.skip("<|tool_call_end|>")
        return found

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return f"<|tool_call_start|>[{', '.join(format_call(call) for call in calls)}]<|tool_call_end|>"

    def build_calls(self, lark: LarkBuilder) -> Expression:
        return lark.sequence("<|tool_call_start|>[", lark.many(build_call(lark), ", "), "]<|tool_call_end|>")


class Olmo3(Dialect):
    """OLMo 3: <function_calls>, calls in a line each, </function_calls>."""

    name = "olmo3"
    markers = ("<function_calls>", "</function_calls>")
    start_markers = ("<function_calls>",)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        source = state.source
        yield from source.space()
        if not (yield from read_call(state)):
            return False
        while not (yield from source.skip("</function_calls>")):
            yield from source.space()
            if not (yield from state.attempt(read_call(state))):
                break
        return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(["<function_calls>", *(format_call(call) for call in calls), "</function_calls>"])

    def build_calls(self, lark: LarkBuilder) -> Expression:
        return lark.sequence("<function_calls>\n", lark.many(build_call(lark), "\n"), "\n", "</function_calls>")
