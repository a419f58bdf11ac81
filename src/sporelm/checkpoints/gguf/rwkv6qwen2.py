"""GGUF files of QRWKV6."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PARTS
from sporelm.checkpoints.rwkv_keys import (
    RWKV6_GGUF_KEYS,
    RWKV6_MIX_GGUF_TENSORS,
    RWKV_CONSTANTS,
    no_heads_metadata,
    with_heads_from_head_size,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.rwkv6qwen2 import Rwkv6Qwen2
from sporelm.models.config import ModelConfig


@register
class Rwkv6Qwen2Gguf(GgufSchema):
    """`rwkv6qwen2`."""

    names = ("rwkv6qwen2",)
    architecture = Rwkv6Qwen2
    keys = gguf_keys(Key("head_dim", "wkv.head_size", "u32"), *RWKV6_GGUF_KEYS, without=("rotary", "window"))
    constants = RWKV_CONSTANTS
    tensors = {
        **DECODER_TENSORS,
        **{
            f"layers.{{}}.attn_{name}.{part}": f"blk.{{}}.time_mix_{stored}.{part}"
            for name, stored in (("q", "receptance"), ("k", "key"), ("v", "value"), ("o", "output"))
            for part in PARTS
        },
        "layers.{}.attn_gate.weight": "blk.{}.time_mix_gate.weight",
        **RWKV6_MIX_GGUF_TENSORS,
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return super().config_from_metadata(gguf, with_heads_from_head_size(gguf.values))

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return {**no_heads_metadata(self.names[0]), f"{self.names[0]}.token_shift_count": ("u32", 1)}
