"""Kimi K3: tags in special tokens, <|open|>name attribute="value"<|sep|> and <|close|>name<|sep|>.

What is said stands in a tag `response`, reasoning in `think`, calls in `tools`: call tool="name" index="1", and in it
argument key="key" type="string" with the text, or with JSON of another type.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.source import Source, Steps
from sporelm.text.dialects.tagged import TEXT, Tagged
from sporelm.text.dialects.tool import resolved, types_of

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
    begins = (section[0], name_open)
    frames = (*RESPONSE, f"{CLOSE}message{SEP}")

    def __init__(self, thinking: Thinking | None = THINKS) -> None:
        super().__init__(thinking)

    def reasons_in(self, template: str) -> bool:
        """It puts its tags together."""
        return "think" in template

    def reason(self, turn: Turn, thinking: Thinking) -> Steps[None]:
        """Read reasoning up to its end, or to what is said, if its end is left out."""
        turn.out.begin_reasoning()
        yield from turn.source.skip(thinking.open)
        yield from turn.source.until((thinking.close, RESPONSE[0]), turn.out.reasoning)
        turn.out.block()

    def named(self, source: Source) -> Steps[bool]:
        """The number of the call, from 1, which says nothing more."""
        if (yield from source.skip(INDEX)):
            source.take(len((yield from source.ahead(NUMBER))))
        return (yield from source.literal(ENDED))

    def plain(self, key: str) -> str:
        return key.replace("&quot;", '"').replace("&amp;", "&")

    def written(self, calls: Sequence[Call]) -> str:
        parts = [
            f"{self.name_open}{call.name}{INDEX}{at}{ENDED}{_arguments(json.loads(call.arguments))}{self.end}"
            for at, call in enumerate(calls, 1)
        ]
        return self.section[0] + "".join(parts) + self.section[1]

    def forced(self, forms: Forms) -> Expression:
        """The prompt may have opened the response, which is empty beside calls."""
        calls = forms.many(forms.each(lambda tool: self.forced_call(forms, tool)), "")
        begin, end = (forms.sequence(mark) for mark in RESPONSE)
        return Expression(f"({begin})? ({end})? {forms.sequence(self.section[0], calls, self.section[1])}")

    def forced_named(self, forms: Forms) -> str:
        return forms.sequence(INDEX, forms.terminal("/[0-9]{1,4}/"), ENDED)

    def forced_value(self, forms: Forms, schema: Any, root: Mapping[str, Any]) -> Expression:
        schema = resolved(schema, root)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values:
            return forms.any_of([forms.sequence(_value(value), self.value_close) for value in values])
        kinds = sorted(types_of(schema, root) - {"any"} or TEXT)
        return forms.any_of(
            [
                forms.sequence(
                    f'" type="{"number" if kind == "integer" else kind}{ENDED}',
                    forms.raw_value({**schema, "type": kind}, root, self.value_close),
                )
                for kind in kinds
            ]
        )

    def framed(self, forms: Forms, content: Expression) -> Expression:
        return Expression(f"({forms.sequence(RESPONSE[0])})? {forms.sequence(content, RESPONSE[1])}")


def _arguments(values: Mapping[str, Any]) -> str:
    keys = {key: key.replace("&", "&amp;").replace('"', "&quot;") for key in values}
    return "".join(f"{KimiK3.key_open}{keys[key]}{_value(values[key])}{KimiK3.value_close}" for key in values)


def _value(value: Any) -> str:
    """The type of a value and the value, as they follow a key."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    kinds = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array"}
    return f'" type="{kinds.get(type(value), "number")}{ENDED}{text}'
