"""Schemas that map checkpoints, GGUF files and Hugging Face folders, to configurations and parameters, and back."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sporelm.checkpoints.open import config_from_gguf, config_from_hf, open_model

__all__ = ["config_from_gguf", "config_from_hf", "open_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("sporelm.checkpoints.open"), name)
