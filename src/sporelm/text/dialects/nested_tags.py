"""Arguments as nested tags: an object has a tag for each key, a list one named item for each element.

Each tag begins with a marker that does not occur in strings. The tool's schema determines the type of a text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sporelm.text.dialects.json_stream import MAX_DEPTH, escape_string
from sporelm.text.dialects.stream_source import Emit, Steps, TextSource
from sporelm.text.dialects.tagged import TEXT, to_json
from sporelm.text.dialects.tool import find_types, resolve_reference

ITEM = "item"
KEY = re.compile(r"[^<>/\s][^<>\n]{0,255}")
NESTED = frozenset(("object", "array", "any"))
EMPTY = {frozenset(("object",)): "{}", frozenset(("array",)): "[]"}


class NestedTags:
    """Reads tags and streams them as JSON; incomplete values are closed, as in `Copier`.

    marker    the text before each tag
    schema    of the outermost object
    """

    def __init__(self, source: TextSource, out: Emit, marker: str, schema: Mapping[str, Any]) -> None:
        self._source, self._out, self._mark, self._root = source, out, marker, schema
        self._depth = 0

    def object(self, close: str) -> Steps[bool]:
        """Read the outermost object up to `close`; False if that is missing."""
        return (yield from self._tags(self._root, close, items=False))

    def _tags(self, schema: Any, close: str, *, items: bool) -> Steps[bool]:
        self._out("[" if items else "{")
        seen: set[str] = set()
        self._depth += 1
        while (tag := (yield from self._source.skip(f"{self._mark}<", close))) not in (None, close):
            key = self._source.take(len((yield from self._source.ahead(KEY))))
            if not key or not (yield from self._source.literal(">")):
                break
            head = f"{', ' if seen else ''}{'' if items else json.dumps(key, ensure_ascii=False) + ': '}"
            out = self._out
            if key in seen and not items:  # the first one counts
                self._out = _discard
            found = yield from self._value(_inner(schema, key, self._root, items=items), f"{self._mark}</{key}>", head)
            self._out = out
            if not found:
                break
            seen.add(key)
        self._depth -= 1
        self._out("]" if items else "}")
        return tag == close

    def _value(self, schema: Any, close: str, head: str) -> Steps[bool]:
        """Read a value up to its closing tag, and emit it after `head`. Return False if the tag is missing."""
        types = find_types(schema, self._root)
        if types == TEXT:
            self._out(head + '"')
            found = yield from self._source.until((close,), lambda text: self._out(escape_string(text)))
            self._out('"')
            return found is not None
        if not types or types & NESTED:
            key = yield from self._key_ahead()
            if key:
                if self._depth >= MAX_DEPTH:
                    return False
                self._out(head)
                items = key == ITEM and types != {"object"}
                return (yield from self._tags(schema, close, items=items))
        parts: list[str] = []
        if (yield from self._source.until((close,), parts.append)) is None:
            return False
        text = "".join(parts)
        self._out(head + (to_json(text, types) if text.strip() else EMPTY.get(types, to_json(text, types))))
        return True

    def _key_ahead(self) -> Steps[str]:
        """Return the key of the next tag without consuming it; empty if there is no tag."""
        place = self._source.hold()
        yield from self._source.space()
        found = yield from self._source.literal(f"{self._mark}<")
        key = self._source.take(len((yield from self._source.ahead(KEY)))) if found else ""
        self._source.back_to(place)
        self._source.release()
        return key


def _discard(text: str) -> None:
    """Discard text."""


def _inner(schema: Any, key: str, root: Mapping[str, Any], *, items: bool) -> Any:
    """Return the schema of a list's elements or of an object's key; None if there is no schema."""
    for each in _choices(schema, root):
        if items:
            found = each.get("items")
        else:
            properties = each.get("properties")
            found = properties.get(key) if isinstance(properties, Mapping) else None
            found = found or each.get("additionalProperties")
        if isinstance(found, Mapping):
            return found
    return None


def _choices(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema, and its alternatives."""
    one = resolve_reference(schema, root)
    yield one
    for name in ("anyOf", "oneOf"):
        if isinstance(one.get(name), list):
            yield from (resolve_reference(each, root) for each in one[name])


def format_value(value: Any, marker: str) -> str:
    """Return a value in tags: a string unchanged, nothing for null in an object."""
    if isinstance(value, Mapping):
        pairs = [(key, inner) for key, inner in value.items() if inner is not None]
        return "".join(f"{marker}<{key}>{format_value(inner, marker)}{marker}</{key}>" for key, inner in pairs)
    if isinstance(value, list):
        return "".join(f"{marker}<{ITEM}>{format_value(inner, marker)}{marker}</{ITEM}>" for inner in value)
    return value if isinstance(value, str) else json.dumps(value)
