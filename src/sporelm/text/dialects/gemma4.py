"""Gemma 4: <|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>.

Reasoning stands in <|channel>thought...<channel|>.
"""

import re
from typing import ClassVar

from sporelm.text.dialects.dialect import Dialect, Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_text import Copier, copy_string, inside_string
from sporelm.text.dialects.loose_forms import LooseForms
from sporelm.text.dialects.source import Out, Source, Steps

QUOTE = '<|"|>'
CHANNELS = Thinking("<|channel>thought", "<channel|>", anywhere=True)
NAME = re.compile(r"[\w.-]{1,128}")
KEY = re.compile(r"[^\s:,\"<>{}\[\]]{1,256}")


class Gemma4(Dialect):
    name = "gemma4"
    marks: tuple[str, ...] = ("<|tool_call>", "<tool_call|>", QUOTE, "<|channel>")
    begins: tuple[str, ...] = ("<|tool_call>",)
    end: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = QUOTE

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
        complete = yield from LooseCopier(source, turn.out.arguments, self.quote).value()
        turn.out.end_call(complete)
        yield from source.skip(self.end)
        return True

    def forced(self, forms: Forms) -> Expression:
        one = forms.each(
            lambda tool: forms.sequence(
                f"{self.begins[0]}call:{tool.name}",
                LooseForms(forms, forms.schema(tool), self.quote).whole(),
                self.end,
            )
        )
        return forms.many(one, "")


class FunctionGemma(Gemma4):
    """FunctionGemma: <start_function_call>call:name{key:<escape>text<escape>}<end_function_call>, no reasoning."""

    name = "functiongemma"
    marks = ("<start_function_call>", "<end_function_call>", "<escape>")
    begins = ("<start_function_call>",)
    end, quote = "<end_function_call>", "<escape>"

    def __init__(self, thinking: Thinking | None = None) -> None:
        super().__init__(thinking)


class LooseCopier(Copier):
    """Keys without quotes; texts between marks of their own, in which nothing is escaped. JSON is read as well."""

    def __init__(self, source: Source, out: Out, quote: str) -> None:
        super().__init__(source, out)
        self._quote = quote
        self._opened: str | None = None

    def opens_string(self) -> Steps[bool]:
        self._opened = yield from self.source.which((self._quote, '"'))
        return self._opened is not None

    def string(self, out: Out) -> Steps[bool]:
        if self._opened == '"':
            return (yield from copy_string(self.source, out))
        return (yield from self.source.until((self._quote,), lambda text: out(inside_string(text)))) is not None

    def key(self, out: Out) -> Steps[bool]:
        if (yield from self.opens_string()):
            return (yield from self.string(out))
        found = self.source.take(len((yield from self.source.ahead(KEY))))
        out(inside_string(found))
        return found != ""
