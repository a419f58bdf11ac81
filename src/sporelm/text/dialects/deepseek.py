"""DeepSeek V3 and R1: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name, a fence with JSON,
<｜tool▁call▁end｜><｜tool▁calls▁end｜>; V3.1 without the word and the fence: name<｜tool▁sep｜>{...}."""

import re
from collections.abc import Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import THINK, Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import object_arguments
from sporelm.text.dialects.sectioned import Sectioned
from sporelm.text.dialects.source import Steps

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
NAME = re.compile(r"[\w.-]{1,128}")


class DeepSeek(Sectioned):
    name = "deepseek"
    marks = (BEGIN, END, CALL, SEPARATOR, CALL_END)
    begins = (BEGIN, CALL)
    section = (BEGIN, END)
    call_mark = CALL

    def __init__(self, thinking: Thinking | None = THINK, *, fenced: bool = True) -> None:
        """fenced: calls that are forced have the form of V3 and R1."""
        super().__init__(thinking)
        self.fenced = fenced
        self._before = "function" + SEPARATOR if fenced else ""
        self._between = "\n```json\n" if fenced else SEPARATOR
        self._after = "\n```" + CALL_END if fenced else CALL_END
        self._separator = "\n" if fenced else ""

    def one(self, turn: Turn) -> Steps[bool]:
        source = turn.source
        yield from source.space()
        name = source.take(len((yield from source.ahead(NAME))))
        if not (yield from source.skip(SEPARATOR)):
            return False
        yield from source.space()
        if (yield from source.peek()) != "{":
            name = source.take(len((yield from source.ahead(NAME))))
            yield from source.skip("```json", "```")
        if not (yield from object_arguments(turn, name)):
            return False
        yield from source.skip("```")
        yield from source.skip(CALL_END)
        return True

    def written(self, calls: Sequence[Call]) -> str:
        parts = [f"{CALL}{self._before}{call.name}{self._between}{call.arguments}{self._after}" for call in calls]
        return BEGIN + self._separator.join(parts) + END

    def forced(self, forms: Forms) -> Expression:
        one = forms.each(
            lambda tool: forms.sequence(
                f"{CALL}{self._before}{tool.name}{self._between}", forms.json(forms.schema(tool)), self._after
            )
        )
        return forms.sequence(BEGIN, forms.many(one, self._separator), END)
