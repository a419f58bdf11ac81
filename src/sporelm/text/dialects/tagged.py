"""Calls with arguments between tags, as raw text, which is converted to JSON by the tool's schema.

A string argument ends at a closing tag that is followed by another argument or the end of the call, so that it may
contain the tag.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from sporelm.text.dialects.dialect import Dialect, ParserState
from sporelm.text.dialects.json_stream import escape_string, repair_json
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.python_stream import PythonCopier
from sporelm.text.dialects.stream_source import Emit, Steps, TextSource
from sporelm.text.dialects.tool import Tool

NAME = re.compile(r"[\w.-]{1,128}")
KEY = re.compile(r"[^<>\"\n]{1,256}")
RAW = "<![CDATA["
RAW_END = "]]>"
TEXT = frozenset(("string",))


class Tagged(Dialect):
    """A subclass defines the tags, here in their order in a call. An optional tag is \"\" if a format does not have it.

    opening          before a call; optional if there is a name_open
    closing          after a call; optional
    section          around all calls; optional
    lines            whether an argument has lines of its own
    """

    opening: str
    name_open: str = ""
    name_close: str = ""
    key_open: str
    key_close: str
    value_open: str = ""
    value_close: str
    end: str
    closing: str = ""
    section: tuple[str, str] = ("", "")
    typed: ClassVar[Mapping[str, frozenset[str]]] = {}  # in the place of key_close: the types that they tell
    lines: ClassVar[bool] = False
    line: ClassVar[str] = "\n"  # between the tags, in forced calls

    def all_markers(self) -> tuple[str, ...]:
        tags = (self.opening, self.name_open, self.key_open, self.key_close, self.value_open, self.value_close)
        found = (*self.start_markers, *tags, self.end, self.closing, *self.section, *super().all_markers())
        return tuple(tag for tag in found if len(tag) > 2)  # no mere quotes and brackets

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        source = state.source
        if marker not in (self.opening, self.name_open):  # it begins a section
            marker = (yield from source.skip(self.opening or self.name_open)) or ""
            if not marker:
                return False
        if self.name_open and marker != self.name_open and not (yield from source.skip(self.name_open)):
            return False
        yield from source.space()
        name = source.take(len((yield from source.ahead(NAME))))
        if not name or not (yield from self.named(source)):
            return False
        following = (self.key_open, self.end)
        tag = yield from source.skip(*following)
        if tag is None:
            return False
        state.begin(name)
        arguments = _TaggedArguments(state, state.tools.get(name))
        whole_so_far = True
        while tag == self.key_open and whole_so_far:
            whole_so_far = yield from self._argument(source, arguments)
            tag = (yield from source.skip(*following)) if whole_so_far else None
        arguments.end(complete=tag == self.end)
        for tail in (self.closing, self.section[1]):
            if tail:
                yield from source.skip(tail)
        return True

    def named(self, source: TextSource) -> Steps[bool]:
        """Read the end of a name; False if it is missing."""
        return not self.name_close or (yield from source.skip(self.name_close)) is not None

    def _argument(self, source: TextSource, arguments: "_TaggedArguments") -> Steps[bool]:
        key = self.plain(source.take(len((yield from source.ahead(KEY)))))
        if not key:
            return False
        close = yield from source.which((self.key_close, *self.typed))
        if close is None:
            return False
        if self.value_open and not (yield from source.skip(self.value_open)):
            return False
        if (yield from source.literal(RAW)):
            return (yield from arguments.value(key, RAW_END + self.value_close, (), lines=False))
        follow = (self.key_open, self.end)
        return (
            yield from arguments.value(key, self.value_close, follow, lines=self.lines, types=self.typed.get(close))
        )

    def plain(self, key: str) -> str:
        """Return a key as the tool's schema spells it."""
        return key

    def build_calls(self, lark: LarkBuilder) -> Expression:
        calls = lark.many(lark.each(lambda tool: self.build_one_call(lark, tool)), "\n")
        begin, end = self.section
        return lark.sequence(begin + "\n", calls, "\n", end) if begin else calls

    def build_one_call(self, lark: LarkBuilder, tool: Tool) -> Expression:
        """Return the rule of a call of one tool."""
        parts: list[str] = [
            f"{self.opening}{self.line if self.opening and self.name_open else ''}{self.name_open}{tool.name}"
        ]
        parts.append(self.build_name_end(lark))
        schema = lark.schema(tool)
        for key, inner in (schema.get("properties") or {}).items():
            argument = lark.sequence(self.key_open + key, self.build_value(lark, inner, schema), self.line)
            required = key in (schema.get("required") or ())
            parts.append(argument if required else Expression(f"({argument})?"))
        parts.append(self.end + (self.line + self.closing if self.closing else ""))
        return lark.sequence(*parts)

    def build_name_end(self, lark: LarkBuilder) -> str:
        """Return the rule of the text after a name."""
        return self.name_close + self.line

    def build_value(self, lark: LarkBuilder, schema: Any, root: Mapping[str, Any]) -> Expression:
        """Return the rule of the text after a key: the rest of its tag, and the value with its tags."""
        edge = "\n" if self.lines else ""
        before = f"{self.key_close}{self.line if self.value_open else ''}{self.value_open}{edge}"
        return lark.sequence(before, lark.raw_value(schema, root, edge + self.value_close))


class _TaggedArguments:
    """Writes the arguments as one JSON object."""

    def __init__(self, state: ParserState, tool: Tool | None) -> None:
        self._source, self._out, self._tool = state.source, state.writer, tool
        self._keys: set[str] = set()

    def value(
        self, key: str, close: str, follow: tuple[str, ...], *, lines: bool, types: frozenset[str] | None = None
    ) -> Steps[bool]:
        """Read a value up to its closing tag, and stream strings. Return False if the tag is missing."""
        if types is None:
            types = self._tool.types(key) if self._tool else frozenset()
        if key in self._keys:  # the first one counts
            return (yield from self._raw(close, follow, lambda text: None))
        if types == TEXT:
            self._key(key)
            self._out.arguments('"')
            text = _Lines(lambda text: self._out.arguments(escape_string(text)), lines)
            found = yield from self._raw(close, follow, text.take)
            if not found:
                text.cut()
            self._out.arguments('"')
            return found
        parts: list[str] = []
        text = _Lines(parts.append, lines)
        if not (yield from self._raw(close, follow, text.take)):
            return False
        self._key(key)
        self._out.arguments(to_json("".join(parts), types))
        return True

    def end(self, *, complete: bool) -> None:
        """End the arguments."""
        self._out.arguments("}" if self._keys else "{}")
        self._out.end_call(complete)

    def _key(self, key: str) -> None:
        self._out.arguments(("{" if not self._keys else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._keys.add(key)

    def _raw(self, close: str, follow: tuple[str, ...], out: Emit) -> Steps[bool]:
        """Read text up to a closing tag that is followed by one of `follow` or the end of the text."""
        source = self._source
        while (yield from source.until((close,), out)):
            place = source.hold()
            yield from source.space()
            found = not follow or (yield from source.peek()) == "" or (yield from source.which(follow)) is not None
            source.back_to(place)
            source.release()
            if found:
                return True
            out(close)
        return False


class _Lines:
    """Drops one line break at the beginning of a text, and one at its end."""

    def __init__(self, out: Emit, lines: bool) -> None:
        self._out, self._lines = out, lines
        self._has_started, self._pending = not lines, ""

    def take(self, text: str) -> None:
        """Add text."""
        if not self._has_started:
            text, self._has_started = text.removeprefix("\n"), True
        text = self._pending + text
        self._pending = "\n" if self._lines and text.endswith("\n") else ""
        if text := text.removesuffix(self._pending):
            self._out(text)

    def cut(self) -> None:
        """End a text without its closing tag: emit what was held back."""
        if self._pending:
            self._out(self._pending)


def to_json(text: str, types: frozenset[str]) -> str:
    """Return a raw value as JSON: parsed if its types allow that, otherwise a string."""
    found = repair_json(text) if types != TEXT else None
    if found is None and types != TEXT and text.lstrip()[:1] in ("[", "{"):  # some templates write Python's
        found = repair_json(text, PythonCopier)
    if found is not None and not found.startswith('"') and _fits(found, types):
        return found
    if types == frozenset(("boolean",)) and text.strip().lower() in ("true", "false"):
        return text.strip().lower()
    if found is not None and found.startswith('"') and types and "string" not in types:
        return found
    return json.dumps(text, ensure_ascii=False)


def _fits(value: str, types: frozenset[str]) -> bool:
    """Return whether a JSON value can be used for these types instead of a string."""
    if "string" not in types:
        return True
    kinds: dict[str, Callable[[str], bool]] = {
        "object": lambda text: text.startswith("{"),
        "array": lambda text: text.startswith("["),
        "boolean": lambda text: text in ("true", "false"),
        "null": lambda text: text == "null",
        "integer": lambda text: text.lstrip("-").isdigit(),
        "number": lambda text: text[0] in "-0123456789",
        "any": lambda text: True,
    }
    return any(kinds[kind](value) for kind in types if kind in kinds)
