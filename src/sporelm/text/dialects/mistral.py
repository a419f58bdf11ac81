"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}], later [TOOL_CALLS]name[ARGS]{...}, with [CALL_ID]... before
[ARGS] in some; reasoning in [THINK]...[/THINK]. Ids are nine letters and digits, which the templates insist on."""

import json
import re
import secrets
import string
from collections.abc import Sequence
from hashlib import sha256

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import object_arguments, read_calls
from sporelm.text.dialects.source import Steps

NAME = re.compile(r"[\w.-]{1,128}")
ID = re.compile(r"[A-Za-z0-9]{1,32}")
ID_LENGTH = 9
BRACKETS = Thinking("[THINK]", "[/THINK]", anywhere=True)


class Mistral(Dialect):
    name = "mistral"
    marks = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    begins = ("[TOOL_CALLS]",)

    def __init__(self, thinking: Thinking | None = BRACKETS, *, named: bool = True) -> None:
        """named: calls that are forced have the later form."""
        super().__init__(thinking)
        self.named = named

    def new_id(self) -> str:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_LENGTH))

    def fitting_id(self, id: str) -> str:
        if len(id) == ID_LENGTH and id.isascii() and id.isalnum():
            return id
        return sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:ID_LENGTH]

    def written(self, calls: Sequence[Call]) -> str:
        if self.named:
            return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{call.arguments}" for call in calls)
        objects = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return f"[TOOL_CALLS][{', '.join(objects)}]"

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        source = turn.source
        yield from source.space()
        if (yield from source.peek()) in ("{", "["):
            return (yield from read_calls(turn))
        name = source.take(len((yield from source.ahead(NAME))))
        id = None
        if (yield from source.skip("[CALL_ID]")):
            id = source.take(len((yield from source.ahead(ID))))
        yield from source.skip("[ARGS]")
        return (yield from object_arguments(turn, name, id if id and len(id) == ID_LENGTH else None))

    def forced(self, forms: Forms) -> Expression:
        if not self.named:
            return forms.sequence("[TOOL_CALLS]", forms.json_call("arguments", many=True))
        one = forms.each(lambda tool: forms.sequence(f"[TOOL_CALLS]{tool.name}[ARGS]", forms.json(forms.schema(tool))))
        return forms.many(one, "")
