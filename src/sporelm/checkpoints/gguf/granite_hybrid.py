"""GGUF files of Granite 4 and Bamba."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf.granite import GRANITE_KEYS, with_default_score_scale
from sporelm.checkpoints.gguf.granitemoe import GraniteMoeGguf
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.hybrid_layers import kv_heads_metadata, read_attention_layers, with_types_by_kv_heads
from sporelm.checkpoints.mamba_keys import (
    MAMBA2_GGUF_KEYS,
    MAMBA2_GGUF_TENSORS,
    find_time_step_limits,
    with_gguf_mamba2_sizes,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.granite_hybrid import GraniteHybrid, GraniteHybridConfig
from sporelm.models.config import ModelConfig

HAS_ROPE: Final = "rope.scaling.finetuned"  # llama.cpp's converter misuses this key


@register
class GraniteHybridGguf(GgufSchema):
    """`granitehybrid`. Layers without attention have 0 KV heads."""

    names = ("granitehybrid",)
    architecture = GraniteHybrid
    keys = gguf_keys(*GRANITE_KEYS, *MAMBA2_GGUF_KEYS, *gguf_expert_keys("count", "used", "shared_ffn", optional=True))
    constants = {"experts.scores": "softmax_of_chosen"}
    tensors = GraniteMoeGguf.tensors | MAMBA2_GGUF_TENSORS
    allows_partial_rotary = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_types_by_kv_heads(gguf.values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, GraniteHybridConfig)
        config = with_gguf_mamba2_sizes(with_default_score_scale(config, values), values)
        kinds = values.get("layer_types") or ["mamba"] * config.layers
        attention_layers = read_attention_layers(values, kinds, config.layers)
        rotary = config.rotary if values.flag(HAS_ROPE, True) else 0
        return replace(config, rotary=rotary, attention_layers=attention_layers)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, GraniteHybridConfig)
        return {
            **kv_heads_metadata(config, "granitehybrid", config.attention_layers),
            "granitehybrid.rope.dimension_count": ("u32", config.rotary or config.head_dim),
            f"granitehybrid.{HAS_ROPE}": ("bool", config.rotary > 0),
        }

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_time_step_limits(config)
