"""GGUF files of Laguna."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.window_head_keys import HEADS_KEY, LOCAL_THETA_KEY, with_gguf_heads, with_window_heads
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.laguna import Laguna, LagunaConfig
from sporelm.models.config import MAX_HEAD_DIM, ModelConfig
from sporelm.models.rope_scaling import UNSCALED, YarnScaling

LAGUNA_ROUTING: Final = {**V3_ROUTING, "experts.shared": 1, "experts.renormalize": True}
FULL_LAYER_STEP: Final = 4


def every_fourth_layer(layers: int) -> frozenset[int]:
    """Return the layers without a window in a file that does not list them."""
    return frozenset(range(0, layers, FULL_LAYER_STEP))


def check_rope_scaling(config: ModelConfig, where: str) -> None:
    """Raise UnsupportedModel for rotary scaling other than YaRN."""
    if config.rope_scaling != UNSCALED and not isinstance(config.rope_scaling, YarnScaling):
        raise UnsupportedModel(f"{where}: rotary scaling is not supported; yarn is")


@register
class LagunaGguf(GgufSchema):
    """`laguna`. The number of rows of the gates distinguishes elementwise gates from those of heads."""

    names = ("laguna",)
    architecture = Laguna
    keys = gguf_keys(
        *gguf_expert_keys("count", "used", "ffn", "shared_ffn", "leading", "scale", "renormalize", "scores"),
        LOCAL_THETA_KEY,
        Key("local_rotary", "rope.dimension_count_swa", "u32", 2, MAX_HEAD_DIM, OPTIONAL),
    )
    constants = LAGUNA_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
        "layers.{}.attn_gate.weight": "blk.{}.attn_gate.weight",
    }
    allows_partial_rotary = True
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_fourth_layer(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> LagunaConfig:
        values = with_gguf_heads(gguf.values if values is None else values, every_fourth_layer)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, LagunaConfig)
        config = with_window_heads(config, values)
        check_rope_scaling(config, values.where)
        rows = gguf.shapes.get("blk.0.attn_gate.weight", (0,))[0]
        return replace(config, has_elementwise_gates=rows == config.layer_heads[0] * config.head_dim)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, LagunaConfig)
        return {f"{self.names[0]}.{HEADS_KEY}": ("[u32]", config.layer_heads)}
