"""GGUF files of Jamba."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys, with_experts_where_routers_are
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, expert_tensors
from sporelm.checkpoints.hybrid_layers import kv_heads_metadata, read_attention_layers, with_types_by_kv_heads
from sporelm.checkpoints.mamba_keys import MAMBA_GGUF_KEYS, MAMBA_GGUF_TENSORS, with_gguf_mamba_sizes
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.jamba import Jamba, JambaConfig
from sporelm.models.config import ModelConfig

JAMBA_CONSTANTS: Final = {"rotary": 0, "mamba.norms": "weighted"}


@register
class JambaGguf(GgufSchema):
    """`jamba`. Layers without attention have 0 KV heads; layers with a router have experts."""

    names = ("jamba",)
    architecture = Jamba
    keys = gguf_keys(*MAMBA_GGUF_KEYS, *gguf_expert_keys("count", "used", optional=True))
    constants = JAMBA_CONSTANTS
    tensors = DECODER_TENSORS | expert_tensors() | MAMBA_GGUF_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_types_by_kv_heads(gguf.values)
        config = with_gguf_mamba_sizes(super().config_from_metadata(gguf, values), values)
        assert isinstance(config, JambaConfig)
        kinds = values.get("layer_types") or ["attention"] * config.layers
        config = replace(config, attention_layers=read_attention_layers(values, kinds, config.layers))
        return with_experts_where_routers_are(config, gguf.shapes)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, JambaConfig)
        return kv_heads_metadata(config, "jamba", config.attention_layers)
