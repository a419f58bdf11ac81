"""Pieces of a grammar in llguidance's Lark, of which dialects put together the form of their calls.

Special tokens are named by their ids: their text, spelled out in other tokens, is something else to a model.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sporelm.text.dialects.dialect import Dialect
from sporelm.text.dialects.tool import Tool, resolved, types_of, with_definitions
from sporelm.text.gbnf_lark import gbnf_as_lark
from sporelm.text.grammar import WHITE_SPACE, Grammar
from sporelm.text.grammar_text import checked_text, choice_as_lark, lark_text, schema_text
from sporelm.text.tokenizer import Tokenizer

MOST_CALLS = 16  # calls of an answer that must call
INTEGER = "/-?(0|[1-9][0-9]{0,17})/"
NUMBER = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/"
BOOLEAN = "/true|false/"
TEXT = "/(?s:.*)/"
GUIDANCE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Expression(str):
    """A piece of a rule; any other str is a text to be said."""


class Forms:
    """Makes expressions and the rules they need. One for one grammar."""

    def __init__(self, dialect: Dialect, tools: Sequence[Tool], tokenizer: Tokenizer, *, parallel: bool) -> None:
        self.tools, self.parallel = tools, parallel
        self._rules: dict[str, str] = {}  # body -> name
        self._special = dialect.special_marks(tokenizer)
        pattern = "|".join(re.escape(mark) for mark in sorted(self._special, key=len, reverse=True))
        self._splitter = re.compile(f"({pattern})") if pattern else None

    def grammar(self, start: Expression) -> str:
        """The whole text."""
        return "\n".join([f"start: {start}", *(f"{name}{body}" for body, name in self._rules.items())])

    def sequence(self, *parts: str) -> Expression:
        """Texts and expressions after each other."""
        found = [part if isinstance(part, Expression) else self._text(part) for part in parts if part]
        return Expression(" ".join(part for part in found if part))

    def any_of(self, choices: Sequence[Expression]) -> Expression:
        """One of several."""
        return Expression(f"({' | '.join(choices)})")

    def each(self, form: Callable[[Tool], Expression]) -> Expression:
        """A form for one of the tools."""
        return self.any_of([form(tool) for tool in self.tools])

    def many(self, call: Expression, between: str) -> Expression:
        """A call, or up to MOST_CALLS of them where several may be made at once."""
        if not self.parallel:
            return call
        name = self._rule("call", f": {call}")
        return Expression(f"{name} ({self.sequence(between, Expression(name))}){{0,{MOST_CALLS - 1}}}")

    def terminal(self, pattern: str) -> Expression:
        """A regular expression between slashes."""
        return Expression(self._rule("T", f": {pattern}"))

    def text_until(self, mark: str) -> Expression:
        """Any text without a mark, and the mark."""
        text = self.terminal(TEXT)
        inside = [mark.index(special) for special in self._special if special in mark]
        if inside:  # no text can hold a special token; what is before it in the mark, the text can
            return self.sequence(text, mark[min(inside) :])
        return Expression(self._rule("until", f"[suffix={quoted(mark)}]: {text}"))

    def content(self, form: Grammar) -> Expression:
        """An answer's content of a form that was asked for. Raises RequestError for one that is no form."""
        if form.json_schema is not None:
            schema = json.loads(schema_text(form.json_schema))
            return Expression(self._rule("json", f": %json {json.dumps(spaced(schema), ensure_ascii=False)}"))
        if form.regex is not None:
            return self.terminal(slashed(checked_text("regex", form.regex)))
        if form.choice is not None:
            return Expression(self._rule("T", f": {choice_as_lark(form.choice).partition('CHOICE: ')[2]}"))
        lark = gbnf_as_lark(form.gbnf) if form.gbnf is not None else lark_text(form.lark)
        return Expression(self._rule("lark", f": %lark {{\n{lark}\n}}"))

    def json(self, schema: Mapping[str, Any]) -> Expression:
        """A JSON value that fits a schema, without needless white space."""
        guided = {**schema, "x-guidance": GUIDANCE}
        return Expression(self._rule("json", f": %json {json.dumps(guided, ensure_ascii=False)}"))

    def json_call(self, key: str, *, name: str = "name", many: bool = False) -> Expression:
        """{name: ..., key: {...}} for one of the tools; an array of them with `many`."""
        definitions, calls = {}, []
        for index, tool in enumerate(self.tools):
            definitions[f"t{index}"] = rooted(self.schema(tool), f"#/$defs/t{index}")
            calls.append(
                {
                    "type": "object",
                    "properties": {name: {"const": tool.name}, key: {"$ref": f"#/$defs/t{index}"}},
                    "required": [name, key],
                    "additionalProperties": False,
                }
            )
        one: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
        if many:
            one = {"type": "array", "items": one, "minItems": 1, "maxItems": MOST_CALLS if self.parallel else 1}
        return self.json({"$defs": definitions, **one})

    def schema(self, tool: Tool) -> dict[str, Any]:
        """The schema of a tool's arguments: an object with what it names alone, unless the tool says otherwise."""
        found: dict[str, Any] = {"type": "object", **tool.parameters}
        if "properties" in found or not tool.parameters:
            found.setdefault("additionalProperties", False)
        return found

    def raw_value(self, schema: Any, root: Mapping[str, Any], close: str) -> Expression:
        """A value without quotes and the text that closes it. Of texts only an enum is held to its schema."""
        schema = resolved(schema, root)
        kinds = types_of(schema, root)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values and kinds == {"string"}:
            return self.sequence(self.any_of([self.sequence(value) for value in values]), close)
        simple = {"integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN}
        bounded = schema.keys() & {"enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
        if len(kinds) == 1 and kinds <= simple.keys() and not bounded:
            return self.sequence(self.terminal(simple[min(kinds)]), close)
        if "string" in kinds or not (kinds or schema.keys() & {"anyOf", "oneOf", "allOf"}):
            return self.text_until(close)
        return self.sequence(self.json(with_definitions(schema, root)), close)

    def _text(self, text: str) -> str:
        parts = self._splitter.split(text) if self._splitter else [text]
        named = [f"<[{self._special[part]}]>" if part in self._special else quoted(part) for part in parts if part]
        return " ".join(named)

    def _rule(self, kind: str, body: str) -> str:
        name = self._rules.get(body)
        if name is None:
            name = self._rules[body] = f"{kind}{len(self._rules)}" if kind.islower() else f"{kind}_{len(self._rules)}"
        return name


def quoted(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def slashed(pattern: str) -> str:
    """A regular expression as Lark writes it, between slashes and in one line."""
    escaped = re.sub(r"\\\n|\n", r"\\n", pattern)
    return "/" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", escaped) + "/"


def spaced(schema: Any) -> Any:
    """A JSON schema whose values may be written with white space, as `Grammar` lets them."""
    if not isinstance(schema, Mapping):
        return schema
    given = schema.get("x-guidance")
    return {
        **schema,
        "x-guidance": {"whitespace_pattern": WHITE_SPACE, **(given if isinstance(given, Mapping) else {})},
    }


def rooted(schema: Any, root: str) -> Any:
    """A schema that becomes a part of another: its references begin at `root`."""
    if isinstance(schema, Mapping):
        found = {name: rooted(value, root) for name, value in schema.items()}
        target = found.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            found["$ref"] = root + target[1:]
        return found
    return [rooted(each, root) for each in schema] if isinstance(schema, list) else schema
