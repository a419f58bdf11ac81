"""GGUF files of RWKV-6."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.rwkv_keys import (
    GROUP_NORM_KEY,
    NORM_GGUF_TENSORS,
    RWKV6_GGUF_KEYS,
    RWKV6_MIX_GGUF_TENSORS,
    RWKV6_MIXES,
    RWKV_CONSTANTS,
    check_width,
    no_heads_metadata,
    with_heads_from_head_size,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable, with_alternatives
from sporelm.models.architectures.rwkv6 import Rwkv6, Rwkv6Config
from sporelm.models.architectures.rwkv7 import GROUP_NORM_EPS
from sporelm.models.config import MAX_LAYERS, ModelConfig

TENSORS: TensorTable = {
    "embedding.weight": "token_embd.weight",
    "output.weight": "output.weight",
    **NORM_GGUF_TENSORS,
    **{f"layers.{{}}.wkv_norm.{part}": f"blk.{{}}.time_mix_ln.{part}" for part in PARTS},
    **RWKV6_MIX_GGUF_TENSORS,
    "layers.{}.wkv.bonus": "blk.{}.time_mix_first.weight",
    **{
        f"layers.{{}}.wkv_{name[0]}.weight": f"blk.{{}}.time_mix_{name}.weight"
        for name in ("receptance", "key", "value", "gate", "output")
    },
    "layers.{}.ffn_mix.weight": "blk.{}.channel_mix_lerp_k.weight",
    "layers.{}.ffn_mix_gate.weight": "blk.{}.channel_mix_lerp_r.weight",
    "layers.{}.ffn_up.weight": "blk.{}.channel_mix_key.weight",
    "layers.{}.ffn_down.weight": "blk.{}.channel_mix_value.weight",
    "layers.{}.ffn_gate.weight": "blk.{}.channel_mix_receptance.weight",
}
SEPARATE_MIX_TENSORS: TensorTable = {
    f"layers.{{}}.mix_{mix}.weight": f"blk.{{}}.time_mix_lerp_{mix}.weight" for mix in RWKV6_MIXES
}


@register
class Rwkv6Gguf(GgufSchema):
    """`rwkv6`. The first files have a tensor for each mix."""

    names = ("rwkv6",)
    architecture = Rwkv6
    keys = gguf_keys(
        Key("head_dim", "wkv.head_size", "u32"),
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        *RWKV6_GGUF_KEYS,
        Key("rescale_every", "rescale_every_n_layers", "u32", 0, MAX_LAYERS, 0),
        GROUP_NORM_KEY,
        without=("kv_heads", "rotary", "window"),
    )
    constants = RWKV_CONSTANTS
    tensors = with_alternatives(TENSORS, SEPARATE_MIX_TENSORS)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_heads_from_head_size(gguf.values)
        config = super().config_from_metadata(gguf, values)
        check_width(config, values)
        assert isinstance(config, Rwkv6Config)
        return replace(config, group_norm_eps=config.group_norm_eps or GROUP_NORM_EPS)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return no_heads_metadata(self.names[0])
