"""What an answer must look like, as the APIs ask for it: `response_format` becomes a `Grammar`."""

from collections.abc import Mapping
from typing import Any

from sporelm.errors import RequestError, shown
from sporelm.text.grammar import KINDS, Grammar

FORMATS = ("text", "json_object", "json_schema", *(kind for kind in KINDS if kind != "json_schema"))


def grammar_of(form: Mapping[str, Any] | None) -> Grammar | None:
    """The grammar of a `response_format`.

    {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {...}}} as OpenAI has
    them (a schema beside the type too, as its responses API does); and ours: "regex", "lark", "gbnf" and "choice", each
    with a field of that name. Raises RequestError for anything else.
    """
    if form is None:
        return None
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(json_schema=form.get("schema", {"type": "object"}))  # with a schema as llama.cpp takes it
    if kind == "json_schema":
        inner = form.get("json_schema", form)
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if not isinstance(schema, Mapping | bool):
            raise RequestError(f"response_format has no schema but {shown(schema)}: give json_schema.schema, an object")
        return Grammar(json_schema=schema)
    if kind in KINDS:
        value = form.get(kind)
        if value is None:
            raise RequestError(f"response_format of type {kind} needs the field {kind!r}")
        return Grammar(**{kind: value})
    raise RequestError(f"response_format has type {shown(kind)}: it must be one of {', '.join(FORMATS)}")


def answer_form(form: Mapping[str, Any] | None, gbnf: str | None) -> Grammar | None:
    """The grammar of a `response_format`, or of llama.cpp's field `grammar`, where the empty text is none.

    Raises RequestError for both, and as `grammar_of`.
    """
    found = grammar_of(form)
    if not gbnf:
        return found
    if found is not None:
        raise RequestError("grammar and response_format are given together: give one of them")
    return Grammar(gbnf=gbnf)


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop texts, given as one or several."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
