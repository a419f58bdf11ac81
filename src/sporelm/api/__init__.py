"""The Python API: load a model and generate text, chat, embed, rerank."""

from sporelm.api.async_llm import AsyncLLM
from sporelm.api.completion import Completion, Piece, Timings
from sporelm.api.conversation import Conversation
from sporelm.api.cpu_count import choose_threads
from sporelm.api.document_ranking import RerankResult
from sporelm.api.llm import LLM
from sporelm.api.lora_adapters import LoraAdapter
from sporelm.api.pipeline import Pipeline, Response, pipeline
from sporelm.api.sampling_params import SamplingParams
from sporelm.backends.host_cores import usable_cores
from sporelm.text.grammar.grammar import Grammar

Ranked = RerankResult  # the old name, kept for callers

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Conversation",
    "Grammar",
    "LoraAdapter",
    "Piece",
    "Pipeline",
    "RerankResult",
    "Response",
    "SamplingParams",
    "Timings",
    "choose_threads",
    "pipeline",
    "usable_cores",
]
