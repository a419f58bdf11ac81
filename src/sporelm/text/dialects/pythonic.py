"""Calls as a list of Python's: [name(key="value", other=1), ...] between marks, or in lines of their own."""

from collections.abc import Sequence

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.python_text import call_forms, read_call, read_list, written_call
from sporelm.text.dialects.source import Steps


class Lfm2(Dialect):
    """LFM2 and LFM2.5: <|tool_call_start|>[name(key="value")]<|tool_call_end|>; JSON, if they were asked for it."""

    name = "lfm2"
    marks = ("<|tool_call_start|>", "<|tool_call_end|>")
    begins = ("<|tool_call_start|>",)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        source = turn.source
        bracket = yield from source.skip("[")
        yield from source.space()
        if (yield from source.peek()) == "{":
            found = yield from read_calls(turn, between=(",",))
            yield from source.skip("]")
        else:
            found = (yield from read_list(turn)) if bracket else (yield from read_call(turn))
        if found:
            yield from source.skip("<|tool_call_end|>")
        return found

    def written(self, calls: Sequence[Call]) -> str:
        return f"<|tool_call_start|>[{', '.join(written_call(call) for call in calls)}]<|tool_call_end|>"

    def forced(self, forms: Forms) -> Expression:
        return forms.sequence("<|tool_call_start|>[", forms.many(call_forms(forms), ", "), "]<|tool_call_end|>")


class Olmo3(Dialect):
    """OLMo 3: <function_calls>, calls in a line each, </function_calls>."""

    name = "olmo3"
    marks = ("<function_calls>", "</function_calls>")
    begins = ("<function_calls>",)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        source = turn.source
        yield from source.space()
        if not (yield from read_call(turn)):
            return False
        while not (yield from source.skip("</function_calls>")):
            yield from source.space()
            if not (yield from turn.attempt(read_call(turn))):
                break
        return True

    def written(self, calls: Sequence[Call]) -> str:
        return "\n".join(["<function_calls>", *(written_call(call) for call in calls), "</function_calls>"])

    def forced(self, forms: Forms) -> Expression:
        return forms.sequence("<function_calls>\n", forms.many(call_forms(forms), "\n"), "\n", "</function_calls>")
