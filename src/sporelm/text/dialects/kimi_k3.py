"""Kimi K3: tags in special tokens, <|open|>name attribute="value"<|sep|> and <|close|>name<|sep|>.

What is said stands in a tag `response`, reasoning in `think`, calls in `tools`: call tool="name" index="1", and in it
argument key="key" type="string" with the text, or with JSON of another type.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import ParserState, Thinking
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps, TextSource
from sporelm.text.dialects.tagged import TEXT, Tagged
from sporelm.text.dialects.tool import find_types, resolve_reference

OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"
RESPONSE = (f"{OPEN}response{SEP}", f"{CLOSE}response{SEP}")
THINKS = Thinking(f"{OPEN}think{SEP}", f"{CLOSE}think{SEP}", anywhere=True)
NUMBER = re.compile("[0-9]{1,8}")
INDEX, ENDED = '" index="', f'"{SEP}'
KINDS = ("string", "number", "boolean", "null", "object", "array")


class KimiK3(Tagged):
    name = "kimi_k3"
    opening = ""
    section = (f"{OPEN}tools{SEP}", f"{CLOSE}tools{SEP}")
    name_open = f'{OPEN}call tool="'
    key_open, key_close, value_close = f'{OPEN}argument key="', ENDED, f"{CLOSE}argument{SEP}"
    typed = {f'" type="{kind}{ENDED}': TEXT if kind == "string" else frozenset(("any",)) for kind in KINDS}
    end = f"{CLOSE}call{SEP}"
    line = ""
    start_markers = (section[0], name_open)
    frame_markers = (*RESPONSE, f"{CLOSE}message{SEP}")

    def __init__(self, thinking: Thinking | None = THINKS) -> None:
        super().__init__(thinking)

    def supports_reasoning(self, template: str) -> bool:
        """It puts its tags together."""
        return "think" in template

    def parse_reasoning(self, state: ParserState, thinking: Thinking) -> Steps[None]:
        """Read reasoning up to its end, or to what is said, if its end is left out."""
        state.writer.begin_reasoning()
        yield from state.source.skip(thinking.open)
        yield from state.source.until((thinking.close, RESPONSE[0]), state.writer.reasoning)
        state.writer.block()

    def named(self, source: TextSource) -> Steps[bool]:
        """The number of the call, from 1, which says nothing more."""
        if (yield from source.skip(INDEX)):
            source.take(len((yield from source.ahead(NUMBER))))
        return (yield from source.literal(ENDED))

    def plain(self, key: str) -> str:
        return key.replace("&quot;", '"').replace("&amp;", "&")

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        parts = [
            f"{self.name_open}{call.name}{INDEX}{at}{ENDED}{_arguments(json.loads(call.arguments))}{self.end}"
            for at, call in enumerate(calls, 1)
        ]
        return self.section[0] + "".join(parts) + self.section[1]

    def build_calls(self, lark: LarkBuilder) -> Expression:
        """The prompt may have opened the response, which is empty beside calls."""
        calls = lark.many(lark.each(lambda tool: self.build_one_call(lark, tool)), "")
        begin, end = (lark.sequence(marker) for marker in RESPONSE)
        return Expression(f"({begin})? ({end})? {lark.sequence(self.section[0], calls, self.section[1])}")

    def build_name_end(self, lark: LarkBuilder) -> str:
        return lark.sequence(INDEX, lark.terminal("/[0-9]{1,4}/"), ENDED)

    def build_value(self, lark: LarkBuilder, schema: Any, root: Mapping[str, Any]) -> Expression:
        schema = resolve_reference(schema, root)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values:
            return lark.any_of([lark.sequence(_value(value), self.value_close) for value in values])
        kinds = sorted(find_types(schema, root) - {"any"} or TEXT)
        return lark.any_of(
            [
                lark.sequence(
                    f'" type="{"number" if kind == "integer" else kind}{ENDED}',
                    lark.raw_value({**schema, "type": kind}, root, self.value_close),
                )
                for kind in kinds
            ]
        )

    def wrap_content(self, lark: LarkBuilder, content: Expression) -> Expression:
        return Expression(f"({lark.sequence(RESPONSE[0])})? {lark.sequence(content, RESPONSE[1])}")


def _arguments(values: Mapping[str, Any]) -> str:
    keys = {key: key.replace("&", "&amp;").replace('"', "&quot;") for key in values}
    return "".join(f"{KimiK3.key_open}{keys[key]}{_value(values[key])}{KimiK3.value_close}" for key in values)


def _value(value: Any) -> str:
    """The type of a value and the value, as they follow a key."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    kinds = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array"}
    return f'" type="{kinds.get(type(value), "number")}{ENDED}{text}'
