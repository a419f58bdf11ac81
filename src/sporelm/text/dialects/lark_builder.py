"""Builds rules in llguidance's Lark. Dialects compose the grammar of their calls from them.

Special tokens are named by their ids: their text, spelled out in other tokens, is something else to a model.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sporelm.text.dialects.dialect import Dialect
from sporelm.text.dialects.tool import Tool, add_definitions, find_types, resolve_reference
from sporelm.text.grammar.gbnf_to_lark import gbnf_as_lark
from sporelm.text.grammar.grammar import WHITE_SPACE, Grammar
from sporelm.text.grammar.grammar_checks import check_grammar_text, check_lark, choice_as_lark, schema_as_text
from sporelm.text.tokenizers.tokenizer import Tokenizer

MAX_CALLS = 16  # calls of an answer that must call
INTEGER = "/-?(0|[1-9][0-9]{0,17})/"
NUMBER = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/"
BOOLEAN = "/true|false/"
TEXT = "/(?s:.*)/"
GUIDANCE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Expression(str):
    """A piece of a rule; any other str is literal text."""


class LarkBuilder:
    """Builds expressions and the rules they need, for one grammar."""

    def __init__(self, dialect: Dialect, tools: Sequence[Tool], tokenizer: Tokenizer, *, parallel: bool) -> None:
        self.tools, self.parallel = tools, parallel
        self._rules: dict[str, str] = {}  # body -> name
        self._special = dialect.special_markers(tokenizer)
        pattern = "|".join(re.escape(marker) for marker in sorted(self._special, key=len, reverse=True))
        self._splitter = re.compile(f"({pattern})") if pattern else None

    def grammar(self, start: Expression) -> str:
        """Return the text of the grammar."""
        return "\n".join([f"start: {start}", *(f"{name}{body}" for body, name in self._rules.items())])

    def sequence(self, *parts: str) -> Expression:
        """Return a concatenation of texts and expressions."""
        found = [part if isinstance(part, Expression) else self._text(part) for part in parts if part]
        return Expression(" ".join(part for part in found if part))

    def any_of(self, choices: Sequence[Expression]) -> Expression:
        """Return an alternation."""
        return Expression(f"({' | '.join(choices)})")

    def each(self, form: Callable[[Tool], Expression]) -> Expression:
        """Return an alternation of one expression for each tool."""
        return self.any_of([form(tool) for tool in self.tools])

    def many(self, call: Expression, between: str) -> Expression:
        """Return a call, or up to MAX_CALLS of them if parallel calls are allowed."""
        if not self.parallel:
            return call
        name = self._rule("call", f": {call}")
        return Expression(f"{name} ({self.sequence(between, Expression(name))}){{0,{MAX_CALLS - 1}}}")

    def terminal(self, pattern: str) -> Expression:
        """Return a terminal of a regular expression between slashes."""
        return Expression(self._rule("T", f": {pattern}"))

    def text_until(self, marker: str) -> Expression:
        """Return any text without a marker, and the marker."""
        text = self.terminal(TEXT)
        inside = [marker.index(special) for special in self._special if special in marker]
        if inside:  # no text can hold a special token; what is before it in the marker, the text can
            return self.sequence(text, marker[min(inside) :])
        return Expression(self._rule("until", f"[suffix={quoted(marker)}]: {text}"))

    def content(self, form: Grammar) -> Expression:
        """Return the rule of an answer's content. Raises RequestError for an invalid grammar."""
        if form.json_schema is not None:
            schema = json.loads(schema_as_text(form.json_schema))
            return Expression(self._rule("json", f": %json {json.dumps(spaced(schema), ensure_ascii=False)}"))
        if form.regex is not None:
            return self.terminal(slashed(check_grammar_text("regex", form.regex)))
        if form.choice is not None:
            return Expression(self._rule("T", f": {choice_as_lark(form.choice).partition('CHOICE: ')[2]}"))
        lark = gbnf_as_lark(form.gbnf) if form.gbnf is not None else check_lark(form.lark)
        return Expression(self._rule("lark", f": %lark {{\n{lark}\n}}"))

    def json(self, schema: Mapping[str, Any]) -> Expression:
        """Return a JSON value that matches a schema, without unnecessary white space."""
        guided = {**schema, "x-guidance": GUIDANCE}
        return Expression(self._rule("json", f": %json {json.dumps(guided, ensure_ascii=False)}"))

    def json_call(self, key: str, *, name: str = "name", many: bool = False) -> Expression:
        """Return {name: ..., key: {...}} for one of the tools; an array of them with `many`."""
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
            one = {"type": "array", "items": one, "minItems": 1, "maxItems": MAX_CALLS if self.parallel else 1}
        return self.json({"$defs": definitions, **one})

    def schema(self, tool: Tool) -> dict[str, Any]:
        """Return the schema of a tool's arguments: without additional properties, unless the tool allows them."""
        found: dict[str, Any] = {"type": "object", **tool.parameters}
        if "properties" in found or not tool.parameters:
            found.setdefault("additionalProperties", False)
        return found

    def raw_value(self, schema: Any, root: Mapping[str, Any], close: str) -> Expression:
        """Return an unquoted value and the text that closes it. For strings only an enum is enforced."""
        schema = resolve_reference(schema, root)
        kinds = find_types(schema, root)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values and kinds == {"string"}:
            return self.sequence(self.any_of([self.sequence(value) for value in values]), close)
        simple = {"integer": INTEGER, "number": NUMBER, "boolean": BOOLEAN}
        bounded = schema.keys() & {"enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
        if len(kinds) == 1 and kinds <= simple.keys() and not bounded:
            return self.sequence(self.terminal(simple[min(kinds)]), close)
        if "string" in kinds or not (kinds or schema.keys() & {"anyOf", "oneOf", "allOf"}):
            return self.text_until(close)
        return self.sequence(self.json(add_definitions(schema, root)), close)

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
    """Return a text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def slashed(pattern: str) -> str:
    """Return a regular expression as Lark writes it, between slashes and on one line."""
    escaped = re.sub(r"\\\n|\n", r"\\n", pattern)
    return "/" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", escaped) + "/"


def spaced(schema: Any) -> Any:
    """Return a JSON schema whose values may contain white space, as in `Grammar`."""
    if not isinstance(schema, Mapping):
        return schema
    given = schema.get("x-guidance")
    return {
        **schema,
        "x-guidance": {"whitespace_pattern": WHITE_SPACE, **(given if isinstance(given, Mapping) else {})},
    }


def rooted(schema: Any, root: str) -> Any:
    """Return a schema for use inside another one: its references begin at `root`."""
    if isinstance(schema, Mapping):
        found = {name: rooted(value, root) for name, value in schema.items()}
        target = found.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            found["$ref"] = root + target[1:]
        return found
    return [rooted(each, root) for each in schema] if isinstance(schema, list) else schema
