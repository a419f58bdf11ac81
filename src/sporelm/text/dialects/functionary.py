"""Functionary 3.1: <function=name>{...}</function>; 3.2: parts that begin with >>>, their recipient's name
or all, and a line break. The prompt ends with the first >>>."""

import re
from collections.abc import Sequence

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import Dialect, ParserState, Thinking
from sporelm.text.dialects.json_calls import object_arguments
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps

PART = ">>>"
NAME = re.compile(r"[\w.-]{1,128}")


class Functionary(Dialect):
    name = "functionary"
    markers = ("<function=", "</function>")
    start_markers = ("<function=",)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        source = state.source
        name = source.take(len((yield from source.ahead(NAME))))
        if not (yield from source.literal(">")) or not (yield from object_arguments(state, name)):
            return False
        yield from source.skip("</function>")
        return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return "".join(f"<function={call.name}>{call.arguments}</function>" for call in calls)

    def build_calls(self, lark: LarkBuilder) -> Expression:
        one = lark.each(
            lambda tool: lark.sequence(f"<function={tool.name}>", lark.json(lark.schema(tool)), "</function>")
        )
        return lark.many(one, "")


class Recipients(Dialect):
    name = "recipients"
    markers = (PART,)

    def __init__(self, thinking: Thinking | None = None) -> None:
        super().__init__(None)

    def parse(self, state: ParserState, thinks: bool) -> Steps[None]:
        yield from state.attempt(self.parse_call(state, ""))
        while (yield from state.source.until((PART,), state.writer.content)):
            yield from state.attempt(self.parse_call(state, PART), PART)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        """Parse the header of a part, and a call's arguments; False if the text is not a part."""
        source = state.source
        yield from source.literal(PART)
        name = source.take(len((yield from source.ahead(NAME))))
        if not (yield from source.literal("\n")):
            return False
        if name in state.tools:
            return (yield from object_arguments(state, name))
        if name == "all":
            state.writer.block()
        return name == "all"

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return "".join(f"{PART}{call.name}\n{call.arguments}" for call in calls)

    def wrap_content(self, lark: LarkBuilder, content: Expression) -> Expression:
        return lark.sequence("all\n", content)

    def build_calls(self, lark: LarkBuilder) -> Expression:
        one = lark.each(lambda tool: lark.sequence(f"{tool.name}\n", lark.json(lark.schema(tool))))
        return lark.many(one, PART)
