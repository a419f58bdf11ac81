"""The most usual formats, for models whose template has no calls: <tool_call>, or JSON in its own line or fence.

JSON without a marker is a call only at the beginning of a line, with a first key of calls and the name of a tool. The
same applies to a list of Python calls.
"""

import json
import re
from collections.abc import Sequence

from sporelm.text.dialects.bare_calls import read_bare_calls
from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import ParserState
from sporelm.text.dialects.hermes import Hermes
from sporelm.text.dialects.json_calls import read_calls
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.python_calls import read_python_calls
from sporelm.text.dialects.stream_source import Steps

FENCE = "```"
_WORD = re.compile(r"\w{0,32}")


class Generic(Hermes):
    name = "generic"
    start_markers = ("<tool_call>", "{", "[", FENCE)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        if marker == "<tool_call>":
            return (yield from super().parse_call(state, marker))
        if marker != FENCE:
            return (yield from read_bare_calls(state, marker, (";", ",")))
        if not state.writer.is_line_blank:
            return False
        word = state.source.take(len((yield from state.source.ahead(_WORD))))
        yield from state.source.space()
        if (yield from state.source.peek()) in ("{", "["):
            found = yield from read_calls(state, bare=True, between=(";", ","))
            if found:
                yield from state.source.skip(FENCE)
            return found
        return word in ("tool_code", "tool_call") and (yield from read_python_calls(state, (FENCE,)))


class Gemma(Generic):
    """Gemma 2 and 3, as Google describes it: {"name": ..., "parameters": {...}}, or Python in a fence of tool_code."""

    name = "gemma"

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(f'{{"name": {json.dumps(call.name)}, "parameters": {call.arguments}}}' for call in calls)

    def build_calls(self, lark: LarkBuilder) -> Expression:
        return lark.json_call("parameters")
