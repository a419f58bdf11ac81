"""Solar Open: each part of an answer has a mark, <|think|>, <|content|> or <|tool_calls|>, and ends with <|end|>.

After one that has ended comes <|begin|>assistant. A call is <|tool_call:begin|>id<|tool_call:name|>name
<|tool_call:args|>{...}<|tool_call:end|>. <|calls|> ends them and the answer, as <|flush|> does what is said last.
"""

import re
import secrets
import string
from collections.abc import Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import object_arguments
from sporelm.text.dialects.sectioned import Sectioned
from sporelm.text.dialects.source import Steps

BEGIN, END = "<|tool_calls|>", "<|calls|>"
CALL, NAME, ARGUMENTS, CALL_END = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"
AGAIN, CONTENT, PART_END, FLUSH = "<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"
THINKS = Thinking("<|think|>", PART_END, anywhere=True)
ID_LENGTH = 10
_ID = re.compile(r"[\w.:-]{0,128}")
_NAME = re.compile(r"[\w.-]{1,128}")


class Solar(Sectioned):
    name = "solar"
    marks = (BEGIN, END, CALL, NAME, ARGUMENTS, CALL_END)
    begins = (BEGIN, CALL)
    frames = (AGAIN, CONTENT, PART_END, FLUSH)
    section = (BEGIN, END)
    call_mark = CALL

    def __init__(self, thinking: Thinking | None = THINKS) -> None:
        super().__init__(thinking)

    def new_id(self) -> str:
        """Ten letters: the template shows ids to the model."""
        return "".join(secrets.choice(string.ascii_lowercase) for _ in range(ID_LENGTH))

    def one(self, turn: Turn) -> Steps[bool]:
        source = turn.source
        yield from source.space()
        source.take(len((yield from source.ahead(_ID))))  # an id of ours is used: the model may repeat its own
        if not (yield from source.skip(NAME)):
            return False
        yield from source.space()
        name = source.take(len((yield from source.ahead(_NAME))))
        if not (yield from source.skip(ARGUMENTS)) or not (yield from object_arguments(turn, name)):
            return False
        yield from source.skip(CALL_END)
        return True

    def written(self, calls: Sequence[Call]) -> str:
        parts = [f"{CALL}{each.id}{NAME}{each.name}{ARGUMENTS}{each.arguments}{CALL_END}" for each in calls]
        return BEGIN + "".join(parts) + END

    def forced(self, forms: Forms) -> Expression:
        id = forms.terminal(f"/[a-z0-9]{{{ID_LENGTH}}}/")
        one = forms.each(
            lambda tool: forms.sequence(
                CALL, id, f"{NAME}{tool.name}{ARGUMENTS}", forms.json(forms.schema(tool)), CALL_END
            )
        )
        return Expression(f"({forms.sequence(AGAIN)})? {forms.sequence(BEGIN, forms.many(one, ''))}")

    def framed(self, forms: Forms, content: Expression) -> Expression:
        return Expression(f"({forms.sequence(AGAIN)})? {forms.sequence(CONTENT, content)}")
