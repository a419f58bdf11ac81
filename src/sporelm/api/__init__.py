"""A path in, text out: models that answer, what is asked of them and what comes back."""

from sporelm.api.adapters import LoraAdapter
from sporelm.api.async_llm import AsyncLLM
from sporelm.api.completion import Completion, Piece, Timings
from sporelm.api.conversation import Conversation
from sporelm.api.llm import LLM
from sporelm.api.machine import choose_threads, usable_cores
from sporelm.api.params import SamplingParams
from sporelm.api.pipeline import Pipeline, Response, pipeline
from sporelm.api.reranking import Ranked
from sporelm.text.grammar import Grammar

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Conversation",
    "Grammar",
    "LoraAdapter",
    "Piece",
    "Pipeline",
    "Ranked",
    "Response",
    "SamplingParams",
    "Timings",
    "choose_threads",
    "pipeline",
    "usable_cores",
]
