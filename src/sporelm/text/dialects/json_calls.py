"""Calls that are JSON objects: {"name": ..., "arguments": {...}} and its relatives."""

from collections.abc import Sequence

from sporelm.text.dialects.dialect import ParserState
from sporelm.text.dialects.json_stream import copy_value, is_json_object, read_string, repair_json
from sporelm.text.dialects.stream_source import Steps

NAMES = ("name", "function", "tool_name")
ARGUMENTS = ("arguments", "parameters")
OTHERS = ("id", "type", "index", "call_id", "tool_call_id")


def read_calls(state: ParserState, *, bare: bool = False, between: Sequence[str] = ()) -> Steps[bool]:
    """Read a call, an array of calls, or calls separated by one of `between`. Return whether any call began.

    bare    no marker was before it: only what begins with a known key and has the name of a tool is a call
    """
    source = state.source
    yield from source.space()
    if (yield from source.peek()) == "[":
        source.take()
        return (yield from _array(state, bare))
    if not (yield from _CallReader(state, bare).read()):
        return False
    while between:
        place = source.hold()
        found = yield from source.skip(*between)
        yield from source.space()
        if found is None or (yield from source.peek()) != "{":
            source.back_to(place)
            source.release()
            break
        if not (yield from state.attempt(_CallReader(state, bare).read())):
            break
    return True


def _array(state: ParserState, bare: bool) -> Steps[bool]:
    source = state.source
    yield from source.space()
    if not (yield from _CallReader(state, bare).read()):
        return False
    while (yield from source.skip(",", "]")) == ",":
        yield from source.space()
        if not (yield from state.attempt(_CallReader(state, bare).read())):
            break
    return True


def object_arguments(state: ParserState, name: str, id: str | None = None) -> Steps[bool]:
    """Begin a call with the JSON object here as arguments; False, without a call, if there is no object."""
    yield from state.source.space()
    if not name or (yield from state.source.peek()) != "{":
        return False
    state.begin(name, id)
    complete = yield from copy_value(state.source, state.writer.arguments)
    state.writer.end_call(complete)
    return True


class _CallReader:
    """Reads one object with its keys in any order. The call begins as soon as name and arguments have begun."""

    def __init__(self, state: ParserState, bare: bool) -> None:
        self.state, self.bare = state, bare
        self.name: str | None = None
        self.id: str | None = None
        self.arguments: str | None = None  # that came before the name
        self.done = False

    def read(self) -> Steps[bool]:
        """Return whether a call began."""
        if (yield from self.state.source.peek()) != "{":
            return False
        if (yield from self._object()) and not self.done and self.name:
            self._give(self.arguments or "{}")
        return self.done

    def _give(self, arguments: str) -> None:
        self.state.begin(self.name or "", self.id)
        self.state.writer.arguments(arguments)
        self.state.writer.end_call(True)
        self.done = True

    def _object(self, *, nested: bool = False) -> Steps[bool]:
        """Read the fields of an object; False if it is malformed or not a call."""
        source = self.state.source
        source.take()
        first = True
        while True:
            comma = yield from source.skip(",", "}")
            if comma == "}":
                return True
            if (comma is None) is not first:
                return False
            yield from source.space()
            if not first and (yield from source.literal("}")):
                return True
            first = False
            if (yield from source.peek()) != '"':
                return False
            key = yield from read_string(source)
            if key is None or (yield from source.skip(":")) is None:
                return False
            yield from source.space()
            if not (yield from self._field(key, nested)):
                return False

    def _field(self, key: str, nested: bool) -> Steps[bool]:
        source = self.state.source
        character = yield from source.peek()
        if key == "function" and character == "{" and not nested:
            return (yield from self._object(nested=True))
        if key in NAMES and character == '"' and not self.done:
            self.name = yield from read_string(source)
            if not self.name or (self.bare and self.name not in self.state.tools):
                return False
            if self.arguments is not None:
                self._give(self.arguments)
            return True
        if key in ARGUMENTS and not self.done and self.arguments is None:
            return (yield from self._arguments(character))
        if key == "id" and character == '"':
            self.id = yield from read_string(source)
            return self.id is not None
        if self.bare and key not in OTHERS:
            return False
        return (yield from copy_value(source, lambda text: None))

    def _arguments(self, character: str) -> Steps[bool]:
        """Read arguments: an object (streamed if the name is known), a string with one, or null."""
        state = self.state
        if character == "{" and self.name:
            state.begin(self.name, self.id)
            complete = yield from copy_value(state.source, state.writer.arguments)
            state.writer.end_call(complete)
            self.done = True
            return complete
        if character == '"':
            text = yield from read_string(state.source)
            found = "{}" if text is not None and not text.strip() else repair_json(text or "")
        else:
            parts: list[str] = []
            complete = yield from copy_value(state.source, parts.append)
            found = "".join(parts) if complete else None
            found = "{}" if found == "null" else found
        if found is None or not is_json_object(found):
            return False
        self.arguments = found
        if self.name:
            self._give(found)
        return True
