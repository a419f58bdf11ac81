"""The form of answers that requests ask for: `response_format` and other fields become a `Grammar`."""

from collections.abc import Mapping
from typing import Any

from sporelm.errors import RequestError, safe_repr
from sporelm.text.grammar.grammar import KINDS, Grammar

FORMATS = ("text", "json_object", "json_schema", *(kind for kind in KINDS if kind != "json_schema"))


def format_grammar(response_format: Mapping[str, Any] | None) -> Grammar | None:
    """Return the grammar of a `response_format`.

    {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {...}}} are OpenAI's
    (a schema beside the type is that of its responses API). "regex", "lark", "gbnf" and "choice" are Sporelm's, each
    with a field of that name. Raises RequestError for anything else.
    """
    if response_format is None:
        return None
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(json_schema=response_format.get("schema", {"type": "object"}))  # llama.cpp's schema field
    if kind == "json_schema":
        inner = response_format.get("json_schema", response_format)
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if not isinstance(schema, Mapping | bool):
            raise RequestError(f"response_format has schema {safe_repr(schema)}: give json_schema.schema, an object")
        return Grammar(json_schema=schema)
    if kind in KINDS:
        value = response_format.get(kind)
        if value is None:
            raise RequestError(f"response_format of type {kind} needs the field {kind!r}")
        return Grammar(**{kind: value})
    raise RequestError(f"response_format has type {safe_repr(kind)}: it must be one of {', '.join(FORMATS)}")


def request_grammar(response_format: Mapping[str, Any] | None, gbnf: str | None) -> Grammar | None:
    """Return the grammar of `response_format`, or of llama.cpp's field `grammar`, where "" means none.

    Raises RequestError if both are given, and as `format_grammar`.
    """
    grammar = format_grammar(response_format)
    if not gbnf:
        return grammar
    if grammar is not None:
        raise RequestError("grammar and response_format are given together: give one of them")
    return Grammar(gbnf=gbnf)


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return the stop strings of a request that gives one or several."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
