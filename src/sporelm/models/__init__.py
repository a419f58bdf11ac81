"""Architectures: shared blocks, the decoder and encoder that are built from them, and one file per architecture."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sporelm.models.architecture_registry import architecture, build, model_class
    from sporelm.models.decoder import Decoder
    from sporelm.models.encoder import Encoder
    from sporelm.models.inputs import StepInputs, compute, input_specs, trace_model
    from sporelm.models.params import Columns, Param, Rows

__all__ = [
    "Columns",
    "Decoder",
    "Encoder",
    "Param",
    "Rows",
    "StepInputs",
    "architecture",
    "build",
    "compute",
    "input_specs",
    "model_class",
    "trace_model",
]

_HOMES = {"Decoder": "decoder", "Encoder": "encoder"}
_HOMES |= dict.fromkeys(("Columns", "Param", "Rows"), "params")
_HOMES |= dict.fromkeys(("StepInputs", "compute", "input_specs", "trace_model"), "inputs")
_HOMES |= dict.fromkeys(("architecture", "build", "model_class"), "architecture_registry")


def __getattr__(name: str) -> Any:
    """Import a public name on first access."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
