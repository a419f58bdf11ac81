"""Solar Open: each part of an answer has a marker, <|think|>, <|content|> or <|tool_calls|>, and ends with <|end|>.

After one that has ended comes <|begin|>assistant. A call is <|tool_call:begin|>id<|tool_call:name|>name
<|tool_call:args|>{...}<|tool_call:end|>. <|calls|> ends them and the answer, as <|flush|> does what is said last.
"""

import re
import secrets
import string
from collections.abc import Sequence

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import ParserState, Thinking
from sporelm.text.dialects.json_calls import object_arguments
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.sectioned import Sectioned
from sporelm.text.dialects.stream_source import Steps

BEGIN, END = "<|tool_calls|>", "<|calls|>"
CALL, NAME, ARGUMENTS, CALL_END = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"
AGAIN, CONTENT, PART_END, FLUSH = "<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"
THINKS = Thinking("<|think|>", PART_END, anywhere=True)
ID_LENGTH = 10
_ID = re.compile(r"[\w.:-]{0,128}")
_NAME = re.compile(r"[\w.-]{1,128}")


class Solar(Sectioned):
    name = "solar"
    markers = (BEGIN, END, CALL, NAME, ARGUMENTS, CALL_END)
    start_markers = (BEGIN, CALL)
    frame_markers = (AGAIN, CONTENT, PART_END, FLUSH)
    section = (BEGIN, END)
    call_mark = CALL

    def __init__(self, thinking: Thinking | None = THINKS) -> None:
        super().__init__(thinking)

    def new_id(self) -> str:
        """Ten letters: the template shows ids to the model."""
        return "".join(secrets.choice(string.ascii_lowercase) for _ in range(ID_LENGTH))

    def parse_one(self, state: ParserState) -> Steps[bool]:
        source = state.source
        yield from source.space()
        source.take(len((yield from source.ahead(_ID))))  # an id of ours is used: the model may repeat its own
        if not (yield from source.skip(NAME)):
            return False
        yield from source.space()
        name = source.take(len((yield from source.ahead(_NAME))))
        if not (yield from source.skip(ARGUMENTS)) or not (yield from object_arguments(state, name)):
            return False
        yield from source.skip(CALL_END)
        return True

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        parts = [f"{CALL}{each.id}{NAME}{each.name}{ARGUMENTS}{each.arguments}{CALL_END}" for each in calls]
        return BEGIN + "".join(parts) + END

    def build_calls(self, lark: LarkBuilder) -> Expression:
        id = lark.terminal(f"/[a-z0-9]{{{ID_LENGTH}}}/")
        one = lark.each(
            lambda tool: lark.sequence(
                CALL, id, f"{NAME}{tool.name}{ARGUMENTS}", lark.json(lark.schema(tool)), CALL_END
            )
        )
        return Expression(f"({lark.sequence(AGAIN)})? {lark.sequence(BEGIN, lark.many(one, ''))}")

    def wrap_content(self, lark: LarkBuilder, content: Expression) -> Expression:
        return Expression(f"({lark.sequence(AGAIN)})? {lark.sequence(CONTENT, content)}")
