"""Grammars of answers in a dialect: of required calls, and of content with a grammar of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.dialects.dialect import Dialect
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.tool import parse_tools, resolve_tool_choice
from sporelm.text.grammar.grammar import Grammar
from sporelm.text.grammar.grammar_checks import MAX_NESTED_GRAMMARS
from sporelm.text.tokenizers.tokenizer import Tokenizer

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
    """Return the grammar of an answer; None if the answer is free.

    tool_choice    as `resolve_tool_choice` describes it
    parallel       several calls may be made at once, if the dialect supports it
    prompt         the end of the rendered prompt: if it has begun reasoning, reasoning comes first
    content        the grammar of an answer without calls; not used if a call is required
    thinks         the model's template supports reasoning, so that it may come before such content

    Reasoning may come before calls in any case. The arguments follow each tool's schema. Raises RequestError for a
    malformed tool or choice, and for schemas that are too many or cannot be used.
    """
    given = parse_tools(tools)
    chosen = resolve_tool_choice(given, tool_choice)
    if chosen is None and content is None:
        return None
    callable_ = () if tool_choice == "none" else given if chosen is None else chosen
    lark = LarkBuilder(dialect, callable_, tokenizer, parallel=parallel)
    choices = [dialect.build_calls(lark)] if callable_ else []
    if chosen is None and content is not None:
        said = lark.content(content)
        wrapped = dialect.wrap_content(lark, said)
        if not choices and wrapped == said and not dialect.starts_in_reasoning(prompt) and not thinks:
            return content
        choices.append(wrapped)
    text = lark.grammar(_after_reasoning(lark.any_of(choices), dialect, lark, prompt))
    if text.count("%json") > MAX_NESTED_GRAMMARS:
        raise RequestError(
            f"the tools need too many schemas in this model's tool-call format (got {text.count('%json')}; allowed "
            f"{MAX_NESTED_GRAMMARS}). Name one function in tool_choice, or give fewer tools."
        )
    return Grammar(lark=text)


def _after_reasoning(answer: Expression, dialect: Dialect, lark: LarkBuilder, prompt: str) -> Expression:
    """An answer before which reasoning comes, if the prompt has begun it, or may come, if it has not ended it."""
    thinking = dialect.thinking
    if thinking is None:
        return answer
    thought = lark.sequence(lark.text_until(thinking.close), lark.terminal(SPACE))
    if dialect.starts_in_reasoning(prompt):
        return Expression(f"{thought} {answer}")
    if prompt.rstrip().endswith(thinking.close):
        return answer
    return Expression(f"({lark.sequence(thinking.open, thought)})? {answer}")
