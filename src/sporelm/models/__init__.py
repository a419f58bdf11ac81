"""Architectures: shared blocks, the decoder they make up, and one short file per family."""

from sporelm.models.decoder import Decoder
from sporelm.models.encoder import Encoder
from sporelm.models.inputs import StepInputs, compute, input_specs, trace_model
from sporelm.models.opened import config_from_gguf, config_from_hf, open_model
from sporelm.models.registry import architecture, build, known_architectures, model_of
from sporelm.weights.names import Columns, Param, Rows

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
    "config_from_gguf",
    "config_from_hf",
    "input_specs",
    "known_architectures",
    "model_of",
    "open_model",
    "trace_model",
]
