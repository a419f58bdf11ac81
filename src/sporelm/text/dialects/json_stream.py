"""Streams JSON so that the emitted text can be completed to valid JSON at any time (RFC 8259).

A key, a comma or a number is emitted together with the next token, so that closing the open strings, arrays and objects
is enough. Small errors of models are repaired: a comma before a closing bracket, control characters inside of
strings, a backslash before a character that needs none, half of a surrogate pair, and Python's True, False and None.
"""

import json
import re
from typing import Any

from sporelm.text.dialects.stream_source import Emit, Steps, TextSource

MAX_DEPTH = 24  # arrays and objects inside each other: a message that holds them again is not too deep (MAX_NESTING)
MAX_SCALAR_CHARACTERS = 400  # characters of a number

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(rf"[-+.0-9A-Za-z_]{{1,{MAX_SCALAR_CHARACTERS + 1}}}")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_LITERALS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_REPLACED = "\\ufffd"


def copy_value(source: TextSource, out: Emit) -> Steps[bool]:
    """Copy one JSON value. Return False if it is malformed or incomplete: then it was closed.

    An incomplete scalar, and a key without a value, are dropped.
    """
    return (yield from Copier(source, out).value())


class Copier:
    """Copies one value. Subclasses for similar formats override how strings and keys are read (the public methods)."""

    def __init__(self, source: TextSource, out: Emit) -> None:
        self.source, self._out = source, out
        self._open: list[str] = []  # what closes the arrays and objects that are open
        self._pending: list[str] = []  # goes out with the next value
        self._inside = False  # of a string that is out already

    def opens_string(self) -> Steps[bool]:
        """Read the beginning of a string, if there is one here."""
        return (yield from self.source.literal('"'))

    def string(self, out: Emit) -> Steps[bool]:
        """Copy the inside of a string as in JSON, and read its end; False if the end is missing."""
        return (yield from copy_string(self.source, out))

    def key(self, out: Emit) -> Steps[bool]:
        """Copy a key in the same way, with its beginning."""
        return (yield from self.opens_string()) and (yield from self.string(out))

    def value(self) -> Steps[bool]:
        """Copy one value, as `copy_value` does."""
        whole = yield from self._value()
        while whole and self._open:
            whole = yield from self._next()
        if not whole:
            self._out('"' * self._inside + "".join(reversed(self._open)))
        return whole

    def _value(self) -> Steps[bool]:
        """Copy a scalar, a string, or the beginning of an array or object."""
        self._pending.append((yield from self.source.space()))
        if (yield from self.opens_string()):
            self._put('"')
            self._inside = True
            if not (yield from self.string(self._out)):
                return False
            self._inside = False
            self._out('"')
            return True
        character = yield from self.source.peek()
        if character and character in "{[":
            if len(self._open) >= MAX_DEPTH:
                return False
            self._put(self.source.take())
            self._open.append("}" if character == "{" else "]")
            return (yield from self._element(first=True))
        return (yield from self._scalar())

    def _next(self) -> Steps[bool]:
        """Copy the text after a value in an array or object."""
        self._pending.append((yield from self.source.space()))
        if (yield from self.source.peek()) == ",":
            self._pending.append(self.source.take())
            return (yield from self._element())
        return (yield from self._close())

    def _element(self, *, first: bool = False) -> Steps[bool]:
        """Copy an element of an array, a key and value of an object, or the end after a comma or nothing."""
        self._pending.append((yield from self.source.space()))
        character = yield from self.source.peek()
        if character and character in "}]":
            self._pending = [text for text in self._pending if text != ","]
            return (yield from self._close())
        if self._open[-1] == "]":
            return (yield from self._value())
        self._pending.append('"')
        if not (yield from self.key(self._pending.append)):
            return False
        self._pending += ['"', (yield from self.source.space())]
        if not (yield from self.source.literal(":")):
            return False
        self._pending.append(":")
        return (yield from self._value())

    def _close(self) -> Steps[bool]:
        if not (yield from self.source.literal(self._open[-1])):
            return False
        self._put(self._open.pop())
        return True

    def _scalar(self) -> Steps[bool]:
        text = yield from self.source.ahead(_SCALAR)
        known = text if len(text) <= MAX_SCALAR_CHARACTERS and _NUMBER.fullmatch(text) else _LITERALS.get(text)
        if text and (yield from self.source.ensure(len(text) + 1)) == text:
            self.source.take(len(text))  # it may have gone on after the end
            return False
        if known is None:
            return False
        self.source.take(len(text))
        self._put(known)
        return True

    def _put(self, text: str) -> None:
        self._out("".join(self._pending) + text)
        self._pending = []


def copy_string(source: TextSource, out: Emit) -> Steps[bool]:
    """Copy the inside of a JSON string after its first quote, and read its last one; False if the text ends before."""
    while True:
        if run := source.run(_PLAIN):
            out(run)
        character = yield from source.peek()
        if character == '"':
            source.take()
            return True
        if character == "":
            return False
        if character == "\\":
            escape = yield from copy_escape(source)
            if not escape:
                return False
            out(escape)
        elif character < " ":
            out(json.dumps(source.take())[1:-1])


def copy_escape(source: TextSource) -> Steps[str]:
    """Read an escape, repaired if it is invalid; empty if the text ends in it: then it is dropped."""
    have = yield from source.ensure(2)
    if len(have) < 2:
        source.take(len(have))
        return ""
    if have[1] in '"\\/bfnrt':
        return source.take(2)
    if have[1] != "u":
        return "\\" + source.take(1)
    have = yield from source.ensure(6)
    if len(have) < 6 and source.ended and re.fullmatch(r"[0-9a-fA-F]*", have[2:]):
        source.take(len(have))
        return ""
    if not _HEX.fullmatch(have[2:]):
        return "\\" + source.take(1)
    code = int(have[2:], 16)
    if not 0xD800 <= code < 0xE000:
        return source.take(6)
    have = yield from source.ensure(12)
    second = have[8:] if have[6:8] == "\\u" and _HEX.fullmatch(have[8:]) else ""
    if code < 0xDC00 and second and 0xDC00 <= int(second, 16) < 0xE000:
        return source.take(12)
    if code < 0xDC00 and len(have) < 12 and re.fullmatch(r"\\?|\\u[0-9a-fA-F]*", have[6:]):
        source.take(len(have))
        return ""
    source.take(6)
    return _REPLACED


def read_string(source: TextSource) -> Steps[str | None]:
    """Read a JSON string from its first quote and return its value; None if it is incomplete."""
    source.take()
    parts: list[str] = []
    if not (yield from copy_string(source, parts.append)):
        return None
    found: str = json.loads(f'"{"".join(parts)}"')
    return found


def is_json_object(text: str) -> bool:
    """Return whether a text is a JSON object, at most MAX_DEPTH deep and without NaN and infinities."""
    copied = repair_json(text)
    return copied is not None and copied.startswith("{")


def repair_json(text: str, copier: type[Copier] = Copier) -> str | None:
    """Return a text as one repaired JSON value, from JSON or the format of `copier`; None if it is not one."""
    source = TextSource()
    source.append(text.strip() + " ")
    source.ended = True
    parts: list[str] = []
    steps: Any = copier(source, parts.append).value()
    try:
        next(steps)
    except StopIteration as done:
        return "".join(parts) if done.value and source.take(1) == " " and not source.take(1) else None
    return None


def escape_string(text: str) -> str:
    """Return a text escaped for the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
