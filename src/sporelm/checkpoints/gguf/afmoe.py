"""GGUF files of Trinity."""

from dataclasses import replace
from math import sqrt
from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    POST_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.afmoe import Afmoe
from sporelm.models.config import ModelConfig

WINDOW_STEP: Final = 4  # each fourth layer has no window
AFMOE_ROUTING: Final = {**V3_ROUTING, "experts.renormalize": True}


@register
class AfmoeGguf(GgufSchema):
    """`afmoe`. The embedding is always scaled by the square root of its width."""

    names = ("afmoe",)
    architecture = Afmoe
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn", "shared", "leading", "scale", "renormalize", "scores"))
    constants = AFMOE_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **POST_NORM_TENSORS,
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
        "layers.{}.attn_gate.weight": "blk.{}.attn_gate.weight",
    }

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        return replace(config, scales=replace(config.scales, embedding=sqrt(config.width)))

    def find_unsupported(self, config: ModelConfig) -> str:
        if config.full_layers != self.full_attention_layers(config.layers):
            return f"its layers without a window are not every {WINDOW_STEP}th"
        return "its embedding is not scaled" if config.scales.embedding == 1 else ""
