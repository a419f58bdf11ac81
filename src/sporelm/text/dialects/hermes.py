"""Hermes 2 and 3, Qwen 2.5 and 3, Granite 4 and many more: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from sporelm.text.dialects.dialect import Dialect, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import read_calls
from sporelm.text.dialects.source import Steps


class Hermes(Dialect):
    name = "hermes"
    marks: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    begins: tuple[str, ...] = ("<tool_call>",)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        if not (yield from read_calls(turn)):
            return False
        yield from turn.source.skip("</tool_call>")
        return True

    def forced(self, forms: Forms) -> Expression:
        return forms.many(forms.sequence("<tool_call>\n", forms.json_call("arguments"), "\n</tool_call>"), "\n")
