"""Dialects: a parser of tool calls and reasoning for each format, and the selection of a model's dialect."""

from typing import Any

from sporelm.text.dialects.choose_dialect import DIALECTS, choose_dialect
from sporelm.text.dialects.deltas import Arguments, CallEnd, CallStart, Content, Delta, Reasoning, Reply, ToolCall
from sporelm.text.dialects.dialect import AnswerParser, Dialect, Thinking
from sporelm.text.dialects.tool_call_grammar import call_grammar
from sporelm.text.dialects.tool_prompt import check_variables, render_with_tools

__all__ = [
    "DIALECTS",
    "AnswerParser",
    "Arguments",
    "CallEnd",
    "CallStart",
    "Content",
    "Delta",
    "Dialect",
    "Reasoning",
    "Reply",
    "Thinking",
    "ToolCall",
    "call_grammar",
    "check_variables",
    "choose_dialect",
    "render_with_tools",
]

_FORMER_NAMES = {
    "CallBegun": CallStart,
    "CallEnded": CallEnd,
    "Call": ToolCall,
    "Parser": AnswerParser,
    "choose": choose_dialect,
}


def __getattr__(name: str) -> Any:
    """Return a class or function under its former name."""
    if name not in _FORMER_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _FORMER_NAMES[name]
