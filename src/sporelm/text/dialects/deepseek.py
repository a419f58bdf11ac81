"""DeepSeek V3 and R1: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name, a fence with JSON,
<｜tool▁call▁end｜><｜tool▁calls▁end｜>; V3.1 without the word and the fence: name<｜tool▁sep｜>{...}.
Reasoning is between <think> and </think>; `Dialect.parse_reasoning` splits it off."""

import re
from collections.abc import Sequence

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import THINK, ParserState, Thinking
from sporelm.text.dialects.json_calls import object_arguments
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.sectioned import Sectioned
from sporelm.text.dialects.stream_source import Steps

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
NAME = re.compile(r"[\w.-]{1,128}")


class DeepSeek(Sectioned):
    name = "deepseek"
    markers = (BEGIN, END, CALL, SEPARATOR, CALL_END)
    start_markers = (BEGIN, CALL)
    section = (BEGIN, END)
    call_mark = CALL

    def __init__(self, thinking: Thinking | None = THINK, *, fenced: bool = True) -> None:
        """fenced: forced calls have the format of V3 and R1."""
        super().__init__(thinking)
        self.fenced = fenced
        self._before = "function" + SEPARATOR if fenced else ""
        self._between = "\n```json\n" if fenced else SEPARATOR
        self._after = "\n```" + CALL_END if fenced else CALL_END
        self._separator = "\n" if fenced else ""

    def parse_one(self, state: ParserState) -> Steps[bool]:
        source = state.source
        yield from source.space()
        name = source.take(len((yield from source.ahead(NAME))))
        if not (yield from source.skip(SEPARATOR)):
            return False
        yield from source.space()
        if (yield from source.peek()) != "{":
            name = source.take(len((yield from source.ahead(NAME))))
            yield from source.skip("```json", "```")
        if not (yield from object_arguments(state, name)):
            return False
        yield from source.skip("```")
        yield from source.skip(CALL_END)
        return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        parts = [f"{CALL}{self._before}{call.name}{self._between}{call.arguments}{self._after}" for call in calls]
        return BEGIN + self._separator.join(parts) + END

    def build_calls(self, lark: LarkBuilder) -> Expression:
        one = lark.each(
            lambda tool: lark.sequence(
                f"{CALL}{self._before}{tool.name}{self._between}", lark.json(lark.schema(tool)), self._after
            )
        )
        return lark.sequence(BEGIN, lark.many(one, self._separator), END)
