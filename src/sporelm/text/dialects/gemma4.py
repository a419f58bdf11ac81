"""Gemma 4: <|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>.

Reasoning stands in <|channel>thought...<channel|>.
"""

import re

from sporelm.text.dialects.dialect import Dialect, Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_text import Copier, copy_string, inside_string
from sporelm.text.dialects.loose_forms import LooseForms
from sporelm.text.dialects.source import Out, Steps

QUOTE = '<|"|>'
CHANNELS = Thinking("<|channel>thought", "<channel|>", anywhere=True)
NAME = re.compile(r"[\w.-]{1,128}")
KEY = re.compile(r"[^\s:,\"<>{}\[\]]{1,256}")


class Gemma4(Dialect):
    name = "gemma4"
    marks = ("<|tool_call>", "<tool_call|>", QUOTE, "<|channel>")
    begins = ("<|tool_call>",)

    def __init__(self, thinking: Thinking | None = CHANNELS) -> None:
        super().__init__(thinking)

    def call(self, turn: Turn, mark: str) -> Steps[bool]:
        source = turn.source
        if not (yield from source.skip("call:")):
            return False
        name = source.take(len((yield from source.ahead(NAME))))
        if not name or (yield from source.peek()) != "{":
            return False
        turn.begin(name)
        complete = yield from LooseCopier(source, turn.out.arguments).value()
        turn.out.end_call(complete)
        yield from source.skip("<tool_call|>")
        return True

    def forced(self, forms: Forms) -> Expression:
        one = forms.each(
            lambda tool: forms.sequence(
                f"<|tool_call>call:{tool.name}", LooseForms(forms, forms.schema(tool), QUOTE).whole(), "<tool_call|>"
            )
        )
        return forms.many(one, "")


class LooseCopier(Copier):
    """Keys without quotes; texts between marks of their own, in which nothing is escaped. JSON is read as well."""

    _opened: str | None = None

    def opens_string(self) -> Steps[bool]:
        self._opened = yield from self.source.which((QUOTE, '"'))
        return self._opened is not None

    def string(self, out: Out) -> Steps[bool]:
        if self._opened == '"':
            return (yield from copy_string(self.source, out))
        return (yield from self.source.until((QUOTE,), lambda text: out(inside_string(text)))) is not None

    def key(self, out: Out) -> Steps[bool]:
        if (yield from self.opens_string()):
            return (yield from self.string(out))
        found = self.source.take(len((yield from self.source.ahead(KEY))))
        out(inside_string(found))
        return found != ""
