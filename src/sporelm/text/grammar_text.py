"""Texts of grammars, checked before llguidance reads them.

Its parsers go as deep as a grammar does, on the stack of the thread: a chain of definitions that is long enough would
end the process. So depth is bounded here, through `$ref` and from rule to rule too.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sporelm.errors import RequestError

LONGEST_GRAMMAR = 1 << 18  # characters
LONGEST_STRING = 1 << 14  # characters of one text inside of a JSON schema
DEEPEST_SCHEMA = 64  # arrays and objects inside each other
MOST_LEVELS = 512  # the same, of a schema and all that it refers to, together
MOST_RULES = 256  # of a Lark grammar
MOST_NESTED = 16  # Lark grammars and JSON schemas inside of one
MOST_CHOICES = 4096

_INSIDE = re.compile(r"%(json|lark|regex)\b\s*")


def checked_text(name: str, given: Any) -> str:
    """A grammar given as text. Raises RequestError if it is not a text, is empty, or too long."""
    if not isinstance(given, str):
        raise RequestError(f"{name} is a {type(given).__name__}: it must be a text")
    if not (given if name in ("regex", "choice") else given.strip()):  # spaces are a regular expression, and a choice
        raise RequestError(f"{name} is empty: give a grammar, or leave it out for a free answer")
    if len(given) > LONGEST_GRAMMAR:
        raise RequestError(f"{name} has {len(given)} characters: at most {LONGEST_GRAMMAR} are taken")
    return given


def lark_text(given: Any) -> str:
    """A Lark grammar, checked with the JSON schemas in it. Raises RequestError."""
    text = checked_text("lark", given)
    rules = sum(":" in line for line in text.splitlines())
    if rules > MOST_RULES:
        raise RequestError(f"lark has {rules} lines with rules: at most {MOST_RULES} are taken")
    inside = list(_INSIDE.finditer(text))
    if len(inside) > MOST_NESTED:
        raise RequestError(f"lark has {len(inside)} grammars inside: at most {MOST_NESTED} are taken")
    for found in inside:
        if found[1] != "json":
            continue
        try:
            value, _ = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError) as reason:
            raise RequestError(f"lark: what follows %json is no JSON: {str(reason)[:100]}") from None
        _check_schema(value)
    return text


def choice_as_lark(given: Sequence[str]) -> str:
    """Texts to choose from as a Lark grammar of one terminal. Raises RequestError."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise RequestError("choice must be a list of texts, none of them empty")
    if not given:
        raise RequestError("choice is empty: give the texts to choose from, or leave it out for a free answer")
    if len(given) > MOST_CHOICES:
        raise RequestError(f"choice has {len(given)} texts: at most {MOST_CHOICES} are taken")
    if not all(isinstance(text, str) and text for text in given):
        raise RequestError("choice must be a list of texts, none of them empty")
    checked_text("choice", "".join(given))
    return f"start: CHOICE\nCHOICE: {' | '.join(json.dumps(text) for text in given)}"


def schema_text(given: Any) -> str:
    """A JSON schema, given as an object or its text, as text. Raises RequestError."""
    text = checked_text("json_schema", given) if isinstance(given, str) else None
    try:
        value = given if text is None else json.loads(text)
        if value is True:  # any JSON, as {} says too
            value, text = {}, "{}"
        text = json.dumps(value) if text is None else text
    except (TypeError, ValueError, RecursionError) as reason:
        raise RequestError(f"json_schema is no JSON: {str(reason)[:100]}") from None
    checked_text("json_schema", text)
    _check_schema(value)
    return text


def _check_schema(value: Any) -> None:
    """Raise RequestError for a schema that is none, that is too deep, or that holds too long a text."""
    if value is False:
        raise RequestError("json_schema is false, which allows nothing: give an object, or true for any JSON")
    if not isinstance(value, dict | bool):
        raise RequestError(f"json_schema is a {type(value).__name__}: it must be an object, or true")
    _check_depth(value)
    wanted, levels = _targets(value), _depth(value)
    seen: set[str] = set()
    while wanted:
        target = wanted.pop()
        if target in seen:
            continue
        seen.add(target)
        found = _found(value, target)
        levels += 1 + _depth(found)
        wanted += _targets(found)
        if levels > MOST_LEVELS:
            raise RequestError(f"json_schema and what it refers to are more than {MOST_LEVELS} levels: make it flatter")


def _check_depth(value: Any) -> None:
    if (depth := _depth(value)) > DEEPEST_SCHEMA:
        raise RequestError(f"json_schema is nested more than {DEEPEST_SCHEMA} deep ({depth}): make it flatter")
    for each in _inside(value):
        if isinstance(each, str) and len(each) > LONGEST_STRING:
            raise RequestError(
                f"json_schema holds a text of {len(each)} characters: at most {LONGEST_STRING} are taken"
            )


def _depth(value: Any) -> int:
    """How many arrays and objects are inside each other; one more than DEEPEST_SCHEMA for more."""
    level, depth = [value], 0
    while level and depth <= DEEPEST_SCHEMA:
        inside: list[Any] = []
        for each in level:
            inside += each.values() if isinstance(each, dict) else each if isinstance(each, list) else []
        depth += any(isinstance(each, dict | list) for each in level)
        level = inside
    return depth


def _inside(value: Any) -> Iterator[Any]:
    """All values in a value, itself too."""
    left = [value]
    while left:
        each = left.pop()
        yield each
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else []


def _targets(value: Any) -> list[str]:
    """What the `$ref`s in a value name."""
    return [each["$ref"] for each in _inside(value) if isinstance(each, dict) and isinstance(each.get("$ref"), str)]


def _found(schema: Any, target: str) -> Any:
    """What a `$ref` points to (RFC 6901). Raises RequestError for what is not in the schema itself."""
    if target != "#" and not target.startswith("#/"):
        raise RequestError(f"json_schema cannot be used: $ref {target!r:.80} must begin with #/")
    found = schema
    for word in target.split("/")[1:]:
        name = word.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
            found = found[int(name[:9])]
        else:
            raise RequestError(f"json_schema cannot be used: $ref {target!r:.80} points to nothing")
    return found
