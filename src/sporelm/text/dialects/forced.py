"""Calls that must be made: the grammar of an answer that is nothing but calls, in the dialect's own form."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.dialects.dialect import Dialect
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.tool import tools_of, wanted
from sporelm.text.grammar import Grammar
from sporelm.text.grammar_text import MOST_NESTED
from sporelm.text.tokenizer import Tokenizer

SPACE = Expression("/\\s{0,4}/")


def call_grammar(
    dialect: Dialect,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: Any,
    tokenizer: Tokenizer,
    *,
    parallel: bool = True,
    prompt: str = "",
) -> Grammar | None:
    """What an answer must look like so that it calls; None where the model may decide.

    tool_choice    as `wanted` describes it
    parallel       several calls may be made at once, where the dialect has a form for that
    prompt         the end of what the template rendered: where it has begun reasoning, reasoning comes first

    Reasoning may come before the calls in any case. The arguments follow each tool's schema. Raises RequestError for a
    malformed tool or choice, and for schemas that are too many or cannot be used.
    """
    chosen = wanted(tools_of(tools), tool_choice)
    if chosen is None:
        return None
    forms = Forms(dialect, chosen, tokenizer, parallel=parallel)
    calls = dialect.forced(forms)
    thinking = dialect.thinking
    if thinking is not None:
        thought = forms.sequence(forms.text_until(thinking.close), forms.terminal(SPACE))
        if dialect.thinks_after(prompt):
            calls = Expression(f"{thought} {calls}")
        elif not prompt.rstrip().endswith(thinking.close):
            calls = Expression(f"({forms.sequence(thinking.open, thought)})? {calls}")
    text = forms.grammar(calls)
    if text.count("%json") > MOST_NESTED:
        raise RequestError(
            f"the tools need {text.count('%json')} schemas in this model's form of calls, at most {MOST_NESTED} are "
            "taken: name one function in tool_choice, or give fewer tools"
        )
    return Grammar(lark=text)
