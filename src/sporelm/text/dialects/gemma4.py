"""Gemma 4: <|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>.

Reasoning stands in <|channel>thought...<channel|>.
"""

import re
from typing import ClassVar

from sporelm.text.dialects.dialect import Dialect, ParserState, Thinking
from sporelm.text.dialects.json_stream import Copier, copy_string, escape_string
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.loose_object_grammar import LooseObjectGrammar
from sporelm.text.dialects.stream_source import Emit, Steps, TextSource

QUOTE = '<|"|>'
CHANNELS = Thinking("<|channel>thought", "<channel|>", anywhere=True)
NAME = re.compile(r"[\w.-]{1,128}")
KEY = re.compile(r"[^\s:,\"<>{}\[\]]{1,256}")


class Gemma4(Dialect):
    name = "gemma4"
    markers: tuple[str, ...] = ("<|tool_call>", "<tool_call|>", QUOTE, "<|channel>")
    start_markers: tuple[str, ...] = ("<|tool_call>",)
    end: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = QUOTE

    def __init__(self, thinking: Thinking | None = CHANNELS) -> None:
        super().__init__(thinking)

    def parse_call(self, state: ParserState, marker: str) -> Steps[bool]:
        source = state.source
        if not (yield from source.skip("call:")):
            return False
        name = source.take(len((yield from source.ahead(NAME))))
        if not name or (yield from source.peek()) != "{":
            return False
        state.begin(name)
        complete = yield from LooseCopier(source, state.writer.arguments, self.quote).value()
        state.writer.end_call(complete)
        yield from source.skip(self.end)
        return True

    def build_calls(self, lark: LarkBuilder) -> Expression:
        one = lark.each(
            lambda tool: lark.sequence(
                f"{self.start_markers[0]}call:{tool.name}",
                LooseObjectGrammar(lark, lark.schema(tool), self.quote).whole(),
                self.end,
            )
        )
        return lark.many(one, "")


class FunctionGemma(Gemma4):
    """FunctionGemma: <start_function_call>call:name{key:<escape>text<escape>}<end_function_call>, no reasoning."""

    name = "functiongemma"
    markers = ("<start_function_call>", "<end_function_call>", "<escape>")
    start_markers = ("<start_function_call>",)
    end, quote = "<end_function_call>", "<escape>"

    def __init__(self, thinking: Thinking | None = None) -> None:
        super().__init__(thinking)


class LooseCopier(Copier):
    """Keys without quotes; texts between markers of their own, in which nothing is escaped. JSON is read as well."""

    def __init__(self, source: TextSource, out: Emit, quote: str) -> None:
        super().__init__(source, out)
        self._quote = quote
        self._opening_quote: str | None = None

    def opens_string(self) -> Steps[bool]:
        self._opening_quote = yield from self.source.which((self._quote, '"'))
        return self._opening_quote is not None

    def string(self, out: Emit) -> Steps[bool]:
        if self._opening_quote == '"':
            return (yield from copy_string(self.source, out))
        return (yield from self.source.until((self._quote,), lambda text: out(escape_string(text)))) is not None

    def key(self, out: Emit) -> Steps[bool]:
        if (yield from self.opens_string()):
            return (yield from self.string(out))
        found = self.source.take(len((yield from self.source.ahead(KEY))))
        out(escape_string(found))
        return found != ""
