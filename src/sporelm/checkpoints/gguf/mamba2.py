"""GGUF files of Mamba 2."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import EMBEDDING_TENSORS
from sporelm.checkpoints.mamba_keys import (
    MAMBA2_GGUF_KEYS,
    MAMBA2_GGUF_TENSORS,
    find_time_step_limits,
    with_gguf_mamba2_sizes,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.mamba2 import Mamba2, Mamba2Config
from sporelm.models.config import ModelConfig


@register
class Mamba2Gguf(GgufSchema):
    """`mamba2`."""

    names = ("mamba2",)
    architecture = Mamba2
    keys = gguf_keys(
        *MAMBA2_GGUF_KEYS,
        Key("eps", "attention.layer_norm_rms_epsilon", "f32"),
        without=("heads", "kv_heads", "head_dim", "ffn", "rotary", "window"),
    )
    constants = {"rotary": 0}
    tensors = {**EMBEDDING_TENSORS, "layers.{}.attn_norm.weight": "blk.{}.attn_norm.weight", **MAMBA2_GGUF_TENSORS}
    has_attention = False

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Mamba2Config)
        return with_gguf_mamba2_sizes(config, gguf.values)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return {"mamba2.attention.head_count": ("u32", 0), "mamba2.feed_forward_length": ("u32", 0)}

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_time_step_limits(config)
