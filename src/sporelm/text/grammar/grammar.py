"""Grammars of answers: JSON schemas, regular expressions, Lark and GBNF grammars, and choices, for llguidance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.grammar.gbnf_to_lark import gbnf_as_lark
from sporelm.text.grammar.grammar_checks import check_grammar_text, check_lark, choice_as_lark, schema_as_text
from sporelm.text.grammar.grammar_errors import translate_llguidance_error

KINDS = ("json_schema", "regex", "lark", "gbnf", "choice")
WHITE_SPACE = r"( |\n {0,32})?"  # between the parts of JSON: enough for indented lines, not for an answer of spaces


@dataclass(frozen=True)
class Grammar:
    """The form of an answer. Exactly one field is given; raises RequestError for none, or several.

    json_schema   a JSON schema, as an object or its text; `{"type": "object"}` is any JSON object, True any JSON
    regex         a regular expression, in linear time (no backtracking, no look-around)
    lark          a grammar in llguidance's dialect of Lark
    gbnf          a grammar in llama.cpp's GBNF
    choice        texts, one of them is the answer
    """

    json_schema: Any = None
    regex: str | None = None
    lark: str | None = None
    choice: Sequence[str] | None = None
    gbnf: str | None = None

    def __post_init__(self) -> None:
        kinds = [name for name in KINDS if getattr(self, name) is not None]
        if len(kinds) != 1:
            problem = f"{', '.join(kinds)} are given together" if kinds else "none is given"
            raise RequestError(f"a grammar is one of {', '.join(KINDS)}: {problem}")

    def source(self) -> str:
        """Return the grammar as llguidance reads it. Raises RequestError if it is too long, too deep or of a wrong
        type."""
        from llguidance import LLMatcher

        try:
            if self.json_schema is not None:
                schema = schema_as_text(self.json_schema)
                return str(LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITE_SPACE}))
            if self.choice is not None:
                return str(LLMatcher.grammar_from_lark(choice_as_lark(self.choice)))
            if self.regex is not None:
                return str(LLMatcher.grammar_from_regex(check_grammar_text("regex", self.regex)))
            if self.gbnf is not None:
                return str(LLMatcher.grammar_from_lark(gbnf_as_lark(self.gbnf)))
            return str(LLMatcher.grammar_from_lark(check_lark(self.lark)))
        except ValueError as reason:
            message = translate_llguidance_error(str(reason))
            raise RequestError(f"the grammar cannot be used: {message}") from None
