"""Kimi K2: a section of calls.

Each is <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>. The number counts
the calls of the conversation; it is a part of the call's id.
"""

import re
from collections.abc import Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import object_arguments
from sporelm.text.dialects.sectioned import Sectioned
from sporelm.text.dialects.source import Steps

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
NAME = re.compile(r"[\w.:-]{1,192}")
NUMBERED = re.compile(r"(?:functions\.)?([\w.-]{1,128}?)(?::\d+)?")


class Kimi(Sectioned):
    name = "kimi"
    marks = (BEGIN, END, CALL, ARGUMENTS, CALL_END)
    begins = (BEGIN, CALL)
    section = (BEGIN, END)
    call_mark = CALL

    def one(self, turn: Turn) -> Steps[bool]:
        """One call after its mark: the name out of what numbers it, then an object."""
        source = turn.source
        yield from source.space()
        found = NUMBERED.fullmatch(source.take(len((yield from source.ahead(NAME)))))
        if found is None or not (yield from source.skip(ARGUMENTS)):
            return False
        if not (yield from object_arguments(turn, found[1])):
            return False
        yield from source.skip(CALL_END)
        return True

    def written(self, calls: Sequence[Call]) -> str:
        parts = [
            f"{CALL}functions.{call.name}:{at}{ARGUMENTS}{call.arguments}{CALL_END}" for at, call in enumerate(calls)
        ]
        return BEGIN + "".join(parts) + END

    def forced(self, forms: Forms) -> Expression:
        number = forms.terminal("/[0-9]{1,4}/")
        one = forms.each(
            lambda tool: forms.sequence(
                f"{CALL}functions.{tool.name}:", number, ARGUMENTS, forms.json(forms.schema(tool)), CALL_END
            )
        )
        return forms.sequence(BEGIN, forms.many(one, ""), END)
