"""MiniMax-M3: <tool_call> around <invoke name="name"> with a tag for each argument, ]<]minimax[>[ before each tag.

Lists and objects are tags too. An answer without reasoning begins with the marker that ends reasoning.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import ParserState, Thinking
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.loose_object_grammar import MAX_DEPTH, MAX_VALUES
from sporelm.text.dialects.nested_tags import ITEM, NestedTags, format_value
from sporelm.text.dialects.sectioned import Sectioned
from sporelm.text.dialects.stream_source import Steps
from sporelm.text.dialects.tool import find_types, resolve_reference

SPACE = "]<]minimax[>["  # the namespace of the tags
BEGIN, END = f"{SPACE}<tool_call>", f"{SPACE}</tool_call>"
CALL, NAMED, CALL_END = f'{SPACE}<invoke name="', '">', f"{SPACE}</invoke>"
THINKS = Thinking("<mm:think>", "</mm:think>")
NAME = re.compile(r"[\w.-]{1,128}")


class MiniMaxM3(Sectioned):
    name = "minimax_m3"
    markers = (BEGIN, END, CALL, CALL_END)
    start_markers = (BEGIN, CALL)
    section = (BEGIN, END)
    call_mark = CALL

    def __init__(self, thinking: Thinking | None = THINKS) -> None:
        super().__init__(thinking)

    def parse(self, state: ParserState, thinks: bool) -> Steps[None]:
        if self.thinking and not thinks and (yield from state.source.skip(self.thinking.close)):
            state.writer.block()
            state.prompt_ended_reasoning = True
        yield from super().parse(state, thinks)

    def parse_one(self, state: ParserState) -> Steps[bool]:
        source = state.source
        name = source.take(len((yield from source.ahead(NAME))))
        if not name or not (yield from source.literal(NAMED)):
            return False
        state.begin(name)
        tool = state.tools.get(name)
        tags = NestedTags(source, state.writer.arguments, SPACE, tool.parameters if tool else {})
        state.writer.end_call((yield from tags.object(CALL_END)))
        return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        parts = [
            f"{CALL}{call.name}{NAMED}{format_value(json.loads(call.arguments), SPACE)}{CALL_END}\n" for call in calls
        ]
        return f"{BEGIN}\n{''.join(parts)}{END}"

    def build_calls(self, lark: LarkBuilder) -> Expression:
        one = lark.each(
            lambda tool: lark.sequence(
                f"{CALL}{tool.name}{NAMED}", TagGrammar(lark, lark.schema(tool)).whole(), CALL_END
            )
        )
        return lark.sequence(f"{BEGIN}\n", lark.many(one, "\n"), "\n", END)


class TagGrammar:
    """Builds the rule of one tool's arguments, in the order of its schema."""

    def __init__(self, lark: LarkBuilder, schema: Mapping[str, Any]) -> None:
        self._lark, self._schema = lark, schema
        self._values = 0

    def whole(self) -> Expression:
        """Return the rule of all tags of a call. Raises RequestError for a schema that is too deep, or endless."""
        return self._tags(self._schema, 0)

    def _tags(self, schema: Mapping[str, Any], depth: int) -> Expression:
        required = schema.get("required") or ()
        found = []
        for key, inner in (schema.get("properties") or {}).items():
            tag = self._tag(key, inner, depth)
            found.append(tag if key in required else Expression(f"({tag})?"))
        return Expression(" ".join(found))

    def _tag(self, key: str, schema: Any, depth: int) -> Expression:
        self._values += 1
        if depth > MAX_DEPTH or self._values > MAX_VALUES:
            raise RequestError(
                f"a tool's schema is too large (allowed {MAX_DEPTH} levels, {MAX_VALUES} values). Simplify it, or do "
                "not require a call."
            )
        schema, close = resolve_reference(schema, self._schema), f"{SPACE}</{key}>"
        kinds = find_types(schema, self._schema)
        if kinds == {"object"} and schema.get("properties"):
            value = self._lark.sequence(self._tags(schema, depth + 1), close)
        elif kinds == {"array"}:
            value = self._lark.sequence(Expression(f"({self._tag(ITEM, schema.get('items'), depth + 1)})*"), close)
        else:
            value = self._lark.raw_value(schema, self._schema, close)
        return self._lark.sequence(f"{SPACE}<{key}>", value)
