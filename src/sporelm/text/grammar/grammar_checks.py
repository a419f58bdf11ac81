"""Checks of grammars before llguidance reads them.

Its parsers recurse as deep as a grammar, on the stack of the thread: a chain of definitions that is long enough would
end the process. So depth is limited here, through `$ref` and from rule to rule too.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sporelm.errors import RequestError

GRAMMAR_SECONDS = 1.0  # of CPU time, for compiling a grammar and taking its first step
MAX_GRAMMAR_CHARACTERS = 1 << 18
MAX_STRING_CHARACTERS = 1 << 14  # of one string in a JSON schema
MAX_SCHEMA_DEPTH = 64  # nested arrays and objects
MAX_TOTAL_DEPTH = 512  # of a schema and everything that it refers to, added up
MAX_RULES = 256  # of a Lark grammar
MAX_NESTED_GRAMMARS = 16  # Lark grammars and JSON schemas in one grammar
MAX_CHOICES = 4096

_NESTED = re.compile(r"%(json|lark|regex)\b\s*")


def check_grammar_text(name: str, value: Any) -> str:
    """Return a grammar given as text. Raises RequestError if it is not a string, is empty, or too long."""
    if not isinstance(value, str):
        raise RequestError(f"{name} is a {type(value).__name__}: it must be a string")
    if not (value if name in ("regex", "choice") else value.strip()):  # spaces are a valid regex, and a valid choice
        raise RequestError(f"{name} is empty: give a grammar, or leave it out for a free answer")
    if len(value) > MAX_GRAMMAR_CHARACTERS:
        raise RequestError(f"{name} is too long (got {len(value)} characters; allowed {MAX_GRAMMAR_CHARACTERS})")
    return value


def check_lark(value: Any) -> str:
    """Return a Lark grammar, checked with the JSON schemas in it. Raises RequestError."""
    text = check_grammar_text("lark", value)
    num_rules = sum(":" in line for line in text.splitlines())
    if num_rules > MAX_RULES:
        raise RequestError(f"lark has too many lines with rules (got {num_rules}; allowed {MAX_RULES})")
    nested = list(_NESTED.finditer(text))
    if len(nested) > MAX_NESTED_GRAMMARS:
        raise RequestError(f"lark has too many nested grammars (got {len(nested)}; allowed {MAX_NESTED_GRAMMARS})")
    for match in nested:
        if match[1] != "json":
            continue
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, match.end())
        except (ValueError, RecursionError) as reason:
            raise RequestError(f"lark: %json is not followed by valid JSON: {str(reason)[:100]}") from None
        _check_schema(schema)
    return text


def choice_as_lark(value: Sequence[str]) -> str:
    """Return texts to choose from as a Lark grammar with one terminal. Raises RequestError."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RequestError("choice must be a list of strings, none of them empty")
    if not value:
        raise RequestError("choice is empty: give the texts to choose from, or leave it out for a free answer")
    if len(value) > MAX_CHOICES:
        raise RequestError(f"choice has too many texts (got {len(value)}; allowed {MAX_CHOICES})")
    if not all(isinstance(text, str) and text for text in value):
        raise RequestError("choice must be a list of strings, none of them empty")
    check_grammar_text("choice", "".join(value))
    return f"start: CHOICE\nCHOICE: {' | '.join(json.dumps(text) for text in value)}"


def schema_as_text(value: Any) -> str:
    """Return a JSON schema, given as an object or its text, as text. Raises RequestError."""
    text = check_grammar_text("json_schema", value) if isinstance(value, str) else None
    try:
        schema = value if text is None else json.loads(text)
        if schema is True:  # any JSON, like {}
            schema = {}
            text = "{}"
        text = json.dumps(schema) if text is None else text
    except (TypeError, ValueError, RecursionError) as reason:
        raise RequestError(f"json_schema is not valid JSON: {str(reason)[:100]}") from None
    check_grammar_text("json_schema", text)
    _check_schema(schema)
    return text


def _check_schema(schema: Any) -> None:
    """Raise RequestError for a value that is not a schema, for one that is too deep, or that has too long a string."""
    if schema is False:
        raise RequestError("json_schema is false, which allows nothing: give an object, or true for any JSON")
    if not isinstance(schema, dict | bool):
        raise RequestError(f"json_schema is a {type(schema).__name__}: it must be an object, or true")
    _check_depth(schema)
    pending = _find_references(schema)
    total_depth = _measure_depth(schema)
    visited: set[str] = set()
    while pending:
        reference = pending.pop()
        if reference in visited:
            continue
        visited.add(reference)
        target = _resolve_reference(schema, reference)
        total_depth += 1 + _measure_depth(target)
        pending += _find_references(target)
        if total_depth > MAX_TOTAL_DEPTH:
            raise RequestError(
                f"json_schema and its references have more than {MAX_TOTAL_DEPTH} levels in all: make it flatter"
            )


def _check_depth(value: Any) -> None:
    if (depth := _measure_depth(value)) > MAX_SCHEMA_DEPTH:
        raise RequestError(f"json_schema is nested too deep (got {depth}; allowed {MAX_SCHEMA_DEPTH}): make it flatter")
    for item in _walk(value):
        if isinstance(item, str) and len(item) > MAX_STRING_CHARACTERS:
            raise RequestError(
                f"json_schema contains too long a string (got {len(item)} characters; allowed {MAX_STRING_CHARACTERS})"
            )


def _measure_depth(value: Any) -> int:
    """Return the number of nested arrays and objects; MAX_SCHEMA_DEPTH + 1 for more."""
    level = [value]
    depth = 0
    while level and depth <= MAX_SCHEMA_DEPTH:
        next_level: list[Any] = []
        for item in level:
            next_level += item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
        depth += any(isinstance(item, dict | list) for item in level)
        level = next_level
    return depth


def _walk(value: Any) -> Iterator[Any]:
    """Yield a value and all values in it."""
    stack = [value]
    while stack:
        item = stack.pop()
        yield item
        stack += item.values() if isinstance(item, dict) else item if isinstance(item, list) else []


def _find_references(value: Any) -> list[str]:
    """Return the targets of all `$ref`s in a value."""
    return [item["$ref"] for item in _walk(value) if isinstance(item, dict) and isinstance(item.get("$ref"), str)]


def _resolve_reference(schema: Any, reference: str) -> Any:
    """Return the target of a `$ref` (RFC 6901). Raises RequestError for a target outside the schema itself."""
    if reference != "#" and not reference.startswith("#/"):
        raise RequestError(f"json_schema cannot be used: $ref {reference!r:.80} must begin with #/")
    target = schema
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and int(name[:9]) < len(target):
            target = target[int(name[:9])]
        else:
            raise RequestError(f"json_schema cannot be used: $ref {reference!r:.80} points to nothing")
    return target
