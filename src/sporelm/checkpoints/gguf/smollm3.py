"""GGUF files of SmolLM3."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

NOPE_STEP: Final = 4  # each fourth layer has no rotary positions


@register
class SmolLM3Gguf(GgufSchema):
    """`smollm3`: Llama without rotary positions in every fourth layer (NoPE, Yang et al. 2025)."""

    names = ("smollm3",)
    architecture = Llama
    keys = gguf_keys(without=("window",))
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        return replace(config, nope_layers=every_nth_layer(NOPE_STEP)(config.layers))

    def find_unsupported(self, config: ModelConfig) -> str:
        is_usual = config.nope_layers == every_nth_layer(NOPE_STEP)(config.layers)
        return "" if is_usual else f"its layers without rotary positions are not every {NOPE_STEP}th"
