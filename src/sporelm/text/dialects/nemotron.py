"""Nemotron Nano 2 and Llama-Nemotron: <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>."""

import json
from collections.abc import Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.source import Steps

OPENING, CLOSING = "<TOOLCALL>", "</TOOLCALL>"


class Nemotron(Dialect):
    name = "nemotron"
    marks = (OPENING, CLOSING)
    begins = (OPENING,)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        if not (yield from read_calls(turn)):
            return False
        yield from turn.source.skip(CLOSING)
        return True

    def written(self, calls: Sequence[Call]) -> str:
        objects = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls]
        return f"{OPENING}[{', '.join(objects)}]{CLOSING}"

    def forced(self, forms: Forms) -> Expression:
        return forms.sequence(OPENING, forms.json_call("arguments", many=True), CLOSING)
