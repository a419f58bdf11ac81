"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}], later [TOOL_CALLS]name[ARGS]{...}, with [CALL_ID]... before
[ARGS] in some; reasoning in [THINK]...[/THINK]. Ids are nine letters and digits, which the templates insist on."""

import json
import re
import secrets
import string
from collections.abc import Sequence
from hashlib import sha256

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import Dialect, ParserState, Thinking
from sporelm.text.dialects.json_calls import object_arguments, read_calls
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps

NAME = re.compile(r"[\w.-]{1,128}")
ID = re.compile(r"[A-Za-z0-9]{1,32}")
ID_LENGTH = 9
BRACKETS = Thinking("[THINK]", "[/THINK]", anywhere=True)


class Mistral(Dialect):
    name = "mistral"
    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    start_markers = ("[TOOL_CALLS]",)

    def __init__(self, thinking: Thinking | None = BRACKETS, *, named: bool = True) -> None:
        """named: forced calls have the later format."""
        super().__init__(thinking)
        self.named = named

    def new_id(self) -> str:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_LENGTH))

    def normalize_call_id(self, id: str) -> str:
        if len(id) == ID_LENGTH and id.isascii() and id.isalnum():
            return id
        return sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:ID_LENGTH]

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        if self.named:
            return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{call.arguments}" for call in calls)
        objects = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return f"[TOOL_CALLS][{', '.join(objects)}]"

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        source = state.source
        yield from source.space()
        if (yield from source.peek()) in ("{", "["):
            return (yield from read_calls(state))
        name = source.take(len((yield from source.ahead(NAME))))
        id = None
        if (yield from source.skip("[CALL_ID]")):
            id = source.take(len((yield from source.ahead(ID))))
        yield from source.skip("[ARGS]")
        return (yield from object_arguments(state, name, id if id and len(id) == ID_LENGTH else None))

    def build_calls(self, lark: LarkBuilder) -> Expression:
        if not self.named:
            return lark.sequence("[TOOL_CALLS]", lark.json_call("arguments", many=True))
        one = lark.each(lambda tool: lark.sequence(f"[TOOL_CALLS]{tool.name}[ARGS]", lark.json(lark.schema(tool))))
        return lark.many(one, "")
