"""Grammars of answers in the dialect's own form: of calls that must be made, and of content that has a form."""

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
    content: Grammar | None = None,
    thinks: bool = False,
) -> Grammar | None:
    """What an answer must look like; None where the model may say what it likes.

    tool_choice    as `wanted` describes it
    parallel       several calls may be made at once, where the dialect has a form for that
    prompt         the end of what the template rendered: where it has begun reasoning, reasoning comes first
    content        the form of an answer that does not call; one that must call has none
    thinks         the model's template speaks of reasoning, so that this may come before such content

    Reasoning may come before calls in any case. The arguments follow each tool's schema. Raises RequestError for a
    malformed tool or choice, and for schemas that are too many or cannot be used.
    """
    given = tools_of(tools)
    chosen = wanted(given, tool_choice)
    if chosen is None and content is None:
        return None
    callable_ = () if tool_choice == "none" else given if chosen is None else chosen
    forms = Forms(dialect, callable_, tokenizer, parallel=parallel)
    choices = [dialect.forced(forms)] if callable_ else []
    if chosen is None and content is not None:
        said = forms.content(content)
        framed = dialect.framed(forms, said)
        if not choices and framed == said and not dialect.thinks_after(prompt) and not thinks:
            return content
        choices.append(framed)
    text = forms.grammar(_after_reasoning(forms.any_of(choices), dialect, forms, prompt))
    if text.count("%json") > MOST_NESTED:
        raise RequestError(
            f"the tools need {text.count('%json')} schemas in this model's form of calls, at most {MOST_NESTED} are "
            "taken: name one function in tool_choice, or give fewer tools"
        )
    return Grammar(lark=text)


def _after_reasoning(answer: Expression, dialect: Dialect, forms: Forms, prompt: str) -> Expression:
    """An answer before which reasoning comes, if the prompt has begun it, or may come, if it has not ended it."""
    thinking = dialect.thinking
    if thinking is None:
        return answer
    thought = forms.sequence(forms.text_until(thinking.close), forms.terminal(SPACE))
    if dialect.thinks_after(prompt):
        return Expression(f"{thought} {answer}")
    if prompt.rstrip().endswith(thinking.close):
        return answer
    return Expression(f"({forms.sequence(thinking.open, thought)})? {answer}")
