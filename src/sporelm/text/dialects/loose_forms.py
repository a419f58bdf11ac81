"""Forms of objects whose keys have no quotes and whose texts stand between marks: {key:<|"|>text<|"|>,other:1}."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.dialects.forms import BOOLEAN, INTEGER, NUMBER, Expression, Forms
from sporelm.text.dialects.tool import resolved, types_of

DEEPEST = 16
MOST_VALUES = 512  # in one tool's schema, what is referred to counted each time


class LooseForms:
    """Makes the form of one tool's arguments. Types and enums of texts hold, references too; bounds do not."""

    def __init__(self, forms: Forms, schema: Mapping[str, Any], quote: str) -> None:
        self._forms, self._schema, self._quote = forms, schema, quote
        self._values = 0

    def whole(self) -> Expression:
        """The whole object. Raises RequestError for a schema that is too deep, or endless."""
        return self._object(self._schema, 0)

    def _object(self, schema: Mapping[str, Any], depth: int) -> Expression:
        if depth > DEEPEST:
            raise RequestError(f"a tool's schema nests deeper than {DEEPEST}: make it flatter, or let the model decide")
        required = set(schema.get("required") or ())
        pairs = [
            (key in required, self._forms.sequence(f"{key}:", self._value(inner, depth)))
            for key, inner in sorted((schema.get("properties") or {}).items())
        ]
        return self._forms.sequence("{", listed(pairs, '","'), "}")

    def _value(self, schema: Any, depth: int) -> Expression:
        self._values += 1
        if self._values > MOST_VALUES:
            raise RequestError(
                f"a tool's schema has more than {MOST_VALUES} values: make it smaller, or let the model decide"
            )
        schema = resolved(schema, self._schema)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values and all(isinstance(value, str) for value in values):
            return self._forms.any_of([self._forms.sequence(f"{self._quote}{value}{self._quote}") for value in values])
        kinds = types_of(schema, self._schema)
        found = [self._of_type(kind, schema, depth) for kind in sorted(kinds) if kind != "any"]
        return self._forms.any_of(found or [self._of_type("string", schema, depth)])

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> Expression:
        simple = {"integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN, "null": "/null/"}
        if kind in simple:
            return self._forms.terminal(simple[kind])
        if kind == "object":
            return self._object(schema, depth + 1)
        if kind == "array":
            if depth > DEEPEST:
                return self._object({}, depth)
            item = self._value(schema.get("items"), depth + 1)
            return Expression(f'"[" ({item} ("," {item})*)? "]"')
        return self._forms.sequence(self._quote, self._forms.text_until(self._quote))


def listed(pairs: Sequence[tuple[bool, Expression]], comma: str) -> Expression:
    """Pairs, each required or not, with commas between those that come: a form for each one that may come first."""
    choices: list[str] = []
    for index, (required, pair) in enumerate(pairs):
        rest = [f"{comma} {each}" if needed else f"({comma} {each})?" for needed, each in pairs[index + 1 :]]
        choices.append(" ".join([pair, *rest]))
        if required:
            return Expression(f"({' | '.join(choices)})")
    return Expression(f"({' | '.join(choices)})?") if choices else Expression("")
