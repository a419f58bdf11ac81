"""GGUF files of DBRX."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.dbrx import Dbrx
from sporelm.models.config import ModelConfig

MAX_CLIP: Final = 1e6
CLIP: Final = "attention.clamp_kqv"
DBRX_ROUTING: Final = {"experts.renormalize": True}


@register
class DbrxGguf(GgufSchema):
    """`dbrx`. A limit of 0 means none."""

    names = ("dbrx",)
    architecture = Dbrx
    keys = gguf_keys(
        Key("layers", "block_count", "u32"),
        Key("width", "embedding_length", "u32"),
        Key("ffn", "feed_forward_length", "u32"),
        Key("heads", "attention.head_count", "u32"),
        Key("kv_heads", "attention.head_count_kv", "u32"),
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        *gguf_expert_keys("count", "used"),
        without=("head_dim", "window"),
    )
    constants = DBRX_ROUTING
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.ffn_norm.weight": "blk.{}.attn_output_norm.weight",
        **{name: row for name, row in FUSED_QKV_TENSORS.items() if name.endswith("weight")},
        **expert_tensors(),
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        return replace(config, qkv_limit=gguf.values.number(CLIP, 0.0, MAX_CLIP, 0.0) or None)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return {f"dbrx.{CLIP}": ("f32", config.qkv_limit or 0.0)}

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_unsupported_routing(config, renormalize=True)
