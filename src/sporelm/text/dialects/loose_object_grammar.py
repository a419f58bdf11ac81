"""Grammar of objects with unquoted keys and strings between markers: {key:<|"|>text<|"|>,other:1}."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.dialects.lark_builder import BOOLEAN, INTEGER, NUMBER, Expression, LarkBuilder
from sporelm.text.dialects.tool import find_types, resolve_reference

MAX_DEPTH = 16
MAX_VALUES = 512  # in one tool's schema; a referenced value counts each time


class LooseObjectGrammar:
    """Builds the rule of one tool's arguments. It enforces types, enums of strings and references, but no bounds."""

    def __init__(self, lark: LarkBuilder, schema: Mapping[str, Any], quote: str) -> None:
        self._lark, self._schema, self._quote = lark, schema, quote
        self._values = 0

    def whole(self) -> Expression:
        """Return the rule of the whole object. Raises RequestError for a schema that is too deep, or endless."""
        return self._object(self._schema, 0)

    def _object(self, schema: Mapping[str, Any], depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise RequestError(
                f"a tool's schema nests deeper than {MAX_DEPTH}: make it flatter, or let the model decide"
            )
        required = set(schema.get("required") or ())
        pairs = [
            (key in required, self._lark.sequence(f"{key}:", self._value(inner, depth)))
            for key, inner in sorted((schema.get("properties") or {}).items())
        ]
        return self._lark.sequence("{", join_pairs(pairs, '","'), "}")

    def _value(self, schema: Any, depth: int) -> Expression:
        self._values += 1
        if self._values > MAX_VALUES:
            raise RequestError(
                f"a tool's schema has too many values (allowed {MAX_VALUES}). Simplify it, or do not require a call."
            )
        schema = resolve_reference(schema, self._schema)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values and all(isinstance(value, str) for value in values):
            return self._lark.any_of([self._lark.sequence(f"{self._quote}{value}{self._quote}") for value in values])
        kinds = find_types(schema, self._schema)
        found = [self._of_type(kind, schema, depth) for kind in sorted(kinds) if kind != "any"]
        return self._lark.any_of(found or [self._of_type("string", schema, depth)])

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> Expression:
        simple = {"integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN, "null": "/null/"}
        if kind in simple:
            return self._lark.terminal(simple[kind])
        if kind == "object":
            return self._object(schema, depth + 1)
        if kind == "array":
            if depth > MAX_DEPTH:
                return self._object({}, depth)
            item = self._value(schema.get("items"), depth + 1)
            return Expression(f'"[" ({item} ("," {item})*)? "]"')
        return self._lark.sequence(self._quote, self._lark.text_until(self._quote))


def join_pairs(pairs: Sequence[tuple[bool, Expression]], comma: str) -> Expression:
    """Return the rule of pairs, each required or optional, separated by commas."""
    choices: list[str] = []
    for index, (required, pair) in enumerate(pairs):
        rest = [f"{comma} {each}" if needed else f"({comma} {each})?" for needed, each in pairs[index + 1 :]]
        choices.append(" ".join([pair, *rest]))
        if required:
            return Expression(f"({' | '.join(choices)})")
    return Expression(f"({' | '.join(choices)})?") if choices else Expression("")
