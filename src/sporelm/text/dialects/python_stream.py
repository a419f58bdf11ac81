"""Streams Python calls, f(key="text", other=[1, True]), as JSON, like `json_stream`.

JSON's literals and escapes are accepted too. Some templates do not escape quotes inside strings, so a quote ends a
string only before a character that can follow a string.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import ParserState
from sporelm.text.dialects.json_stream import Copier, copy_escape, escape_string
from sporelm.text.dialects.lark_builder import INTEGER, NUMBER, Expression, LarkBuilder
from sporelm.text.dialects.loose_object_grammar import join_pairs
from sporelm.text.dialects.stream_source import Emit, Steps, TextSource
from sporelm.text.dialects.tool import Tool, add_definitions, find_types, resolve_reference

NAME = re.compile(r"[\w.-]{1,128}")
KEY = re.compile(r"[^\s=,()'\"\[\]{}]{1,256}")
QUOTES = ("'''", '"""', "'", '"')
BOOLEAN = "/True|False/"
STRING = r'/"([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/'
_PLAIN = re.compile(r"[^'\"\\]+")
_CODES = {"x": 4, "U": 10}  # characters of an escape that gives a character's number
_NESTED = (",", "]", "}", ":", ")", "")


def read_call(state: ParserState, *, bare: bool = False) -> Steps[bool]:
    """Read a call; False if there is no call. `bare`: only calls of known tools, since no marker precedes it."""
    source = state.source
    name = source.take(len((yield from source.ahead(NAME))))
    if not name or (bare and name not in state.tools) or not (yield from source.literal("(")):
        return False
    state.begin(name)
    complete = yield from _PythonArguments(state, state.tools.get(name)).read()
    state.writer.end_call(complete)
    return True


def read_list(state: ParserState, *, bare: bool = False) -> Steps[bool]:
    """Parse calls in brackets, after the opening one. Return whether any began."""
    source = state.source
    yield from source.space()
    if not (yield from read_call(state, bare=bare)):
        return False
    while (yield from source.skip(",", "]")) == ",":
        yield from source.space()
        if (yield from source.literal("]")) or not (yield from state.attempt(read_call(state, bare=bare))):
            break
    return True


class PythonCopier(Copier):
    """Copies one value in Python's syntax."""

    _quote = ""

    def opens_string(self) -> Steps[bool]:
        self._quote = (yield from self.source.which(QUOTES)) or ""
        return self._quote != ""

    def string(self, out: Emit) -> Steps[bool]:
        source, quote = self.source, self._quote
        while True:
            if run := source.run(_PLAIN):
                out(escape_string(run))
            if (yield from source.literal(quote)):
                if (yield from self._ended()):
                    return True
                out(escape_string(quote))
                continue
            character = yield from source.peek()
            if character == "":
                return False
            if character == "\\":
                escape = yield from _escape(source)
                if escape is None:
                    return False
                out(escape)
            elif character in "'\"":
                out(escape_string(source.take()))

    def _ended(self) -> Steps[bool]:
        """Return whether the quote just read can end a string, by the next characters, which are not consumed."""
        place = self.source.hold()
        yield from self.source.space()
        found = yield from self.follows()
        self.source.back_to(place)
        self.source.release()
        return found

    def follows(self) -> Steps[bool]:
        """Return whether the next characters can follow a string."""
        return (yield from self.source.peek()) in _NESTED


class _Argument(PythonCopier):
    """The value of an argument. `before` goes out with it; named: only arguments with names follow."""

    def __init__(self, source: TextSource, out: Emit, before: str, *, named: bool) -> None:
        super().__init__(source, out)
        self._pending.append(before)
        self._named = named

    def follows(self) -> Steps[bool]:
        source = self.source
        if self._open:
            return (yield from super().follows())
        if (yield from source.peek()) in (")", ""):
            return True
        if not (yield from source.literal(",")):
            return False
        yield from source.space()
        if not self._named or (yield from source.peek()) in (")", ""):
            return True
        source.take(len((yield from source.ahead(KEY))))
        return (yield from source.skip("=")) is not None or (yield from source.peek()) == ""


class _PythonArguments:
    """Reads the arguments after a call's opening parenthesis, and writes them as one JSON object."""

    def __init__(self, state: ParserState, tool: Tool | None) -> None:
        self._source, self._out = state.source, state.writer
        properties = tool.parameters.get("properties") if tool else None
        self._names = list(properties) if isinstance(properties, dict) else []
        self._keys: set[str] = set()
        self._named = False

    def read(self) -> Steps[bool]:
        """Return False if the arguments are malformed or incomplete: then the object was closed."""
        whole = yield from self._all()
        self._out.arguments("}" if self._keys else "{}")
        return whole

    def _all(self) -> Steps[bool]:
        source = self._source
        while True:
            if (yield from source.skip(")")):
                return True
            yield from source.space()
            key = yield from self._key()
            if key is None or not (yield from self._value(key)):
                return False
            after = yield from source.skip(",", ")")
            if after != ",":
                return after == ")"

    def _key(self) -> Steps[str | None]:
        """Return the name of an argument; a positional one has its name from the tool's schema."""
        source = self._source
        place = source.hold()
        key = source.take(len((yield from source.ahead(KEY))))
        if key and (yield from source.skip("=")):
            source.release()
            self._named = True
            return key
        yield from source.space()
        if (yield from source.peek()) == "":  # cut off in a name, or in a number
            source.release()
            return None
        source.back_to(place)
        source.release()
        at = len(self._keys)
        return self._names[at] if not self._named and at < len(self._names) else None

    def _value(self, key: str) -> Steps[bool]:
        before = ("{" if not self._keys else ", ") + json.dumps(key, ensure_ascii=False) + ": "
        if key in self._keys:  # the first one counts
            return (yield from _Argument(self._source, lambda text: None, "", named=self._named).value())

        def out(text: str) -> None:
            if text:
                self._keys.add(key)
                self._out.arguments(text)

        return (yield from _Argument(self._source, out, before, named=self._named).value())


def _escape(source: TextSource) -> Steps[str | None]:
    """Return an escape as JSON writes it; None if the text ends in it: then it is dropped."""
    have = yield from source.ensure(2)
    if len(have) == 2 and have[1] in "'\n":
        source.take(2)
        return have[1].strip()
    length = _CODES.get(have[1:], 0)
    if not length:
        return (yield from copy_escape(source)) or None
    have = yield from source.ensure(length)
    if re.fullmatch(rf"[0-9a-fA-F]{{{length - 2}}}", have[2:]) and int(have[2:], 16) < 0x110000:
        source.take(length)
        return json.dumps(chr(int(have[2:], 16)))[1:-1]
    if len(have) < length and re.fullmatch("[0-9a-fA-F]*", have[2:]):
        source.take(len(have))
        return None
    source.take(1)
    return "\\\\"


def format_call(call: ToolCall) -> str:
    """Return a call in Python's syntax."""
    values: dict[str, Any] = json.loads(call.arguments)
    return f"{call.name}({', '.join(f'{key}={_format_value(value)}' for key, value in values.items())})"


def _format_value(value: Any) -> str:
    return repr(value) if isinstance(value, bool) or value is None else json.dumps(value, ensure_ascii=False)


def build_call(lark: LarkBuilder, wrap: Callable[[Expression], Sequence[str]] = lambda call: (call,)) -> Expression:
    """Return the rule of a call of any of the tools; `wrap` adds the text around it."""
    return lark.each(lambda tool: lark.sequence(*wrap(_call_form(lark, tool))))


def _call_form(lark: LarkBuilder, tool: Tool) -> Expression:
    schema = lark.schema(tool)
    required = set(schema.get("required") or ())
    pairs = [
        (key in required, lark.sequence(f"{key}=", _value_form(lark, inner, schema)))
        for key, inner in (schema.get("properties") or {}).items()
    ]
    return lark.sequence(f"{tool.name}(", join_pairs(pairs, '", "'), ")")


def _value_form(lark: LarkBuilder, schema: Any, root: dict[str, Any]) -> Expression:
    """A value: Python's literals and JSON's texts where a type says all, and otherwise JSON of the schema."""
    schema = resolve_reference(schema, root)
    kinds = find_types(schema, root)
    simple = {"integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN, "string": STRING}
    if len(kinds) == 1 and kinds <= simple.keys() and not schema.keys() - {"type", "title", "description", "default"}:
        return lark.terminal(simple[min(kinds)])
    return lark.json(add_definitions(schema, root))
