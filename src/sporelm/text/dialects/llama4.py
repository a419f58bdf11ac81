"""Llama 4: [name(argument="value"), ...], between <|python_start|> and <|python_end|> or bare; or Llama 3's JSON."""

from collections.abc import Sequence

from sporelm.text.dialects.bare import read_bare
from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect, Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.python_text import call_forms, read_call, written_call
from sporelm.text.dialects.source import Steps

START, END = "<|python_start|>", "<|python_end|>"


class Llama4(Dialect):
    name = "llama4"
    marks = (START, END)
    begins = (START, "[", "{")

    def __init__(self, thinking: Thinking | None = None, *, lists: bool = False) -> None:
        """lists: calls that are forced are a list; otherwise JSON."""
        super().__init__(thinking)
        self.lists = lists

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        source = turn.source
        if mark != START:
            return (yield from read_bare(turn, mark, (";",)))
        bracket = yield from source.skip("[", "{")
        if bracket:
            turn.out.block()  # what the mark begins is a line of its own
            found = yield from read_bare(turn, bracket, (";",))
        else:
            yield from source.space()
            found = yield from read_call(turn, bare=True)
        if found:
            yield from source.skip(END)
        return found

    def written(self, calls: Sequence[Call]) -> str:
        return f"[{', '.join(written_call(call) for call in calls)}]"

    def forced(self, forms: Forms) -> Expression:
        if self.lists:
            return forms.sequence("[", forms.many(call_forms(forms), ", "), "]")
        return forms.json_call("parameters")
