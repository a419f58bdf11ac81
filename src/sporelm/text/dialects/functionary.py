"""Functionary 3.1: <function=name>{...}</function>; 3.2: parts that begin with >>>, the name of whom they are for, or
all, and a line's end. The prompt ends with the first >>>."""

import re
from collections.abc import Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import object_arguments
from sporelm.text.dialects.source import Steps

PART = ">>>"
NAME = re.compile(r"[\w.-]{1,128}")


class Functionary(Dialect):
    name = "functionary"
    marks = ("<function=", "</function>")
    begins = ("<function=",)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        source = turn.source
        name = source.take(len((yield from source.ahead(NAME))))
        if not (yield from source.literal(">")) or not (yield from object_arguments(turn, name)):
            return False
        yield from source.skip("</function>")
        return True

    def written(self, calls: Sequence[Call]) -> str:
        return "".join(f"<function={call.name}>{call.arguments}</function>" for call in calls)

    def forced(self, forms: Forms) -> Expression:
        one = forms.each(
            lambda tool: forms.sequence(f"<function={tool.name}>", forms.json(forms.schema(tool)), "</function>")
        )
        return forms.many(one, "")


class Recipients(Dialect):
    name = "recipients"
    marks = (PART,)

    def __init__(self, thinking: Thinking | None = None) -> None:
        super().__init__(None)

    def steps(self, turn: Turn, thinks: bool) -> Steps[None]:
        yield from turn.attempt(self.call(turn, ""))
        while (yield from turn.source.until((PART,), turn.out.content)):
            yield from turn.attempt(self.call(turn, PART), PART)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        """What a part begins with, and a call's arguments; False where this is no part."""
        source = turn.source
        yield from source.literal(PART)
        name = source.take(len((yield from source.ahead(NAME))))
        if not (yield from source.literal("\n")):
            return False
        if name in turn.tools:
            return (yield from object_arguments(turn, name))
        if name == "all":
            turn.out.block()
        return name == "all"

    def written(self, calls: Sequence[Call]) -> str:
        return "".join(f"{PART}{call.name}\n{call.arguments}" for call in calls)

    def framed(self, forms: Forms, content: Expression) -> Expression:
        return forms.sequence("all\n", content)

    def forced(self, forms: Forms) -> Expression:
        one = forms.each(lambda tool: forms.sequence(f"{tool.name}\n", forms.json(forms.schema(tool))))
        return forms.many(one, PART)
