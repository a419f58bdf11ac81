"""Dialects of tool calls and reasoning: one small parser for each, and which of them a model speaks."""

from sporelm.text.dialects.choice import DIALECTS, choose
from sporelm.text.dialects.deltas import Arguments, Call, CallBegun, CallEnded, Content, Delta, Reasoning, Reply
from sporelm.text.dialects.dialect import Dialect, Parser, Thinking
from sporelm.text.dialects.forced import call_grammar
from sporelm.text.dialects.prompt import check_variables, render_with_tools

__all__ = [
    "DIALECTS",
    "Arguments",
    "Call",
    "CallBegun",
    "CallEnded",
    "Content",
    "Delta",
    "Dialect",
    "Parser",
    "Reasoning",
    "Reply",
    "Thinking",
    "call_grammar",
    "check_variables",
    "choose",
    "render_with_tools",
]
