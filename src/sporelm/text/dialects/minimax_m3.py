"""MiniMax-M3: <tool_call> around <invoke name="name"> with a tag for each argument, ]<]minimax[>[ before each tag.

Lists and objects are tags too. An answer without reasoning begins with the mark that ends reasoning.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.loose_forms import DEEPEST, MOST_VALUES
from sporelm.text.dialects.nested_tags import ITEM, NestedTags, written
from sporelm.text.dialects.sectioned import Sectioned
from sporelm.text.dialects.source import Steps
from sporelm.text.dialects.tool import resolved, types_of

SPACE = "]<]minimax[>["  # the name space of the tags
BEGIN, END = f"{SPACE}<tool_call>", f"{SPACE}</tool_call>"
CALL, NAMED, CALL_END = f'{SPACE}<invoke name="', '">', f"{SPACE}</invoke>"
THINKS = Thinking("<mm:think>", "</mm:think>")
NAME = re.compile(r"[\w.-]{1,128}")


class MiniMaxM3(Sectioned):
    name = "minimax_m3"
    marks = (BEGIN, END, CALL, CALL_END)
    begins = (BEGIN, CALL)
    section = (BEGIN, END)
    call_mark = CALL

    def __init__(self, thinking: Thinking | None = THINKS) -> None:
        super().__init__(thinking)

    def steps(self, turn: Turn, thinks: bool) -> Steps[None]:
        if self.thinking and not thinks and (yield from turn.source.skip(self.thinking.close)):
            turn.out.block()
            turn.thought = True
        yield from super().steps(turn, thinks)

    def one(self, turn: Turn) -> Steps[bool]:
        source = turn.source
        name = source.take(len((yield from source.ahead(NAME))))
        if not name or not (yield from source.literal(NAMED)):
            return False
        turn.begin(name)
        tool = turn.tools.get(name)
        tags = NestedTags(source, turn.out.arguments, SPACE, tool.parameters if tool else {})
        turn.out.end_call((yield from tags.object(CALL_END)))
        return True

    def written(self, calls: Sequence[Call]) -> str:
        parts = [f"{CALL}{call.name}{NAMED}{written(json.loads(call.arguments), SPACE)}{CALL_END}\n" for call in calls]
        return f"{BEGIN}\n{''.join(parts)}{END}"

    def forced(self, forms: Forms) -> Expression:
        one = forms.each(
            lambda tool: forms.sequence(
                f"{CALL}{tool.name}{NAMED}", TagForms(forms, forms.schema(tool)).whole(), CALL_END
            )
        )
        return forms.sequence(f"{BEGIN}\n", forms.many(one, "\n"), "\n", END)


class TagForms:
    """Makes the form of one tool's arguments, in the order of its schema."""

    def __init__(self, forms: Forms, schema: Mapping[str, Any]) -> None:
        self._forms, self._schema = forms, schema
        self._values = 0

    def whole(self) -> Expression:
        """All tags of a call. Raises RequestError for a schema that is too deep, or endless."""
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
        if depth > DEEPEST or self._values > MOST_VALUES:
            raise RequestError(
                f"a tool's schema nests deeper than {DEEPEST}, or has more than {MOST_VALUES} values: make it smaller, "
                "or let the model decide"
            )
        schema, close = resolved(schema, self._schema), f"{SPACE}</{key}>"
        kinds = types_of(schema, self._schema)
        if kinds == {"object"} and schema.get("properties"):
            value = self._forms.sequence(self._tags(schema, depth + 1), close)
        elif kinds == {"array"}:
            value = self._forms.sequence(Expression(f"({self._tag(ITEM, schema.get('items'), depth + 1)})*"), close)
        else:
            value = self._forms.raw_value(schema, self._schema, close)
        return self._forms.sequence(f"{SPACE}<{key}>", value)
