"""Kimi K2: a section of calls.

Each is <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>. The number counts
the calls of the conversation; it is a part of the call's id.
"""

import re
from collections.abc import Sequence

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import ParserState
from sporelm.text.dialects.json_calls import object_arguments
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.sectioned import Sectioned
from sporelm.text.dialects.stream_source import Steps

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
NAME = re.compile(r"[\w.:-]{1,192}")
NUMBERED = re.compile(r"(?:functions\.)?([\w.-]{1,128}?)(?::\d+)?")


class Kimi(Sectioned):
    name = "kimi"
    markers = (BEGIN, END, CALL, ARGUMENTS, CALL_END)
    start_markers = (BEGIN, CALL)
    section = (BEGIN, END)
    call_mark = CALL

    def parse_one(self, state: ParserState) -> Steps[bool]:
        """One call after its marker: the name out of what numbers it, then an object."""
        source = state.source
        yield from source.space()
        found = NUMBERED.fullmatch(source.take(len((yield from source.ahead(NAME)))))
        if found is None or not (yield from source.skip(ARGUMENTS)):
            return False
        if not (yield from object_arguments(state, found[1])):
            return False
        yield from source.skip(CALL_END)
        return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        parts = [
            f"{CALL}functions.{call.name}:{at}{ARGUMENTS}{call.arguments}{CALL_END}" for at, call in enumerate(calls)
        ]
        return BEGIN + "".join(parts) + END

    def build_calls(self, lark: LarkBuilder) -> Expression:
        number = lark.terminal("/[0-9]{1,4}/")
        one = lark.each(
            lambda tool: lark.sequence(
                f"{CALL}functions.{tool.name}:", number, ARGUMENTS, lark.json(lark.schema(tool)), CALL_END
            )
        )
        return lark.sequence(BEGIN, lark.many(one, ""), END)
