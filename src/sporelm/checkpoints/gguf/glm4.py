"""GGUF files of GLM-4-0414."""

from dataclasses import replace

import numpy as np

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_GATE_UP_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.glm4 import Glm4
from sporelm.models.config import ModelConfig


@register
class Glm4Gguf(GgufSchema):
    """`glm4`. Files of multimodal models (GLM-4.1V) have the rows of each head in the order of halves."""

    names = ("glm4",)
    architecture = Glm4
    keys = gguf_keys(without=("window",))
    constants = {"rope_style": "adjacent"}
    tensors = DECODER_TENSORS | FUSED_GATE_UP_TENSORS | POST_NORM_TENSORS
    allows_partial_rotary = True
    has_mtp_layers = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        sections = gguf.values.get("rope.dimension_sections")
        return config if sections is None or not np.any(sections) else replace(config, rope_style="half")
