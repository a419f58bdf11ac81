"""Sporelm runs language models on whatever hardware is there; the engine and its CPU kernels are Python.

The public names below are imported when they are first used, so that `import sporelm` costs nothing.
"""

from importlib import import_module

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from sporelm.api import LLM, AsyncLLM, Completion, Conversation, Grammar, LoraAdapter, Piece, SamplingParams
    from sporelm.api.image_text_encoder import ImageTextEncoder
    from sporelm.api.pipeline import pipeline
    from sporelm.errors import SporeError

__version__ = "0.1.0"

_HOMES = {
    "LLM": "sporelm.api",
    "AsyncLLM": "sporelm.api",
    "SamplingParams": "sporelm.api",
    "Completion": "sporelm.api",
    "Conversation": "sporelm.api",
    "Grammar": "sporelm.api",
    "ImageTextEncoder": "sporelm.api.image_text_encoder",
    "LoraAdapter": "sporelm.api",
    "Piece": "sporelm.api",
    "pipeline": "sporelm.api",
    "SporeError": "sporelm.errors",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Conversation",
    "Grammar",
    "ImageTextEncoder",
    "LoraAdapter",
    "Piece",
    "SamplingParams",
    "SporeError",
    "__version__",
    "pipeline",
]


def __getattr__(name: str) -> "Any":
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sporelm' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
