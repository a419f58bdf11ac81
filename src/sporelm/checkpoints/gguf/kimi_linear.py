"""GGUF files of Kimi Linear."""

from dataclasses import replace
from typing import Any, Final, TypeVar

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import LAYER_TYPES, SPLIT_CONV_GGUF_TENSORS
from sporelm.checkpoints.expert_keys import V3_ATTRIBUTES, V3_ROUTING, find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.hybrid_layers import kv_heads_metadata, read_attention_layers, with_types_by_kv_heads
from sporelm.checkpoints.latent_keys import LATENT_GGUF_KEYS, LatentGgufSchema
from sporelm.checkpoints.latent_tensors import KV_B_GGUF_TENSORS, LATENT_GGUF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, with_alternatives
from sporelm.checkpoints.transforms import Squeeze
from sporelm.models.architectures.kimi_linear import KimiLinear, KimiLinearConfig
from sporelm.models.config import MAX_CONV_KERNEL, MAX_HEAD_DIM, ModelConfig

# Attention and delta nets have the same number of heads.
KDA_CONSTANTS: Final = {"delta_net.num_key_heads": 0, "delta_net.num_value_heads": 0}
KDA_GGUF_KEYS: Final = (
    Key("delta_net.conv_kernel", "ssm.conv_kernel", "u32", 2, MAX_CONV_KERNEL),
    Key("delta_net.key_head_dim", "kda.head_dim", "u32", 1, MAX_HEAD_DIM),
)
KIMI_CONSTANTS: Final = {"rotary": 0, "experts.renormalize": True, **V3_ROUTING}
# Tensors of delta nets that Kimi Linear and Ling 3 share, without decays.
KDA_GGUF_TENSORS: Final[TensorTable] = {
    **{f"layers.{{}}.delta_{name}.weight": f"blk.{{}}.attn_{name}.weight" for name in "qkv"},
    **SPLIT_CONV_GGUF_TENSORS,
    "layers.{}.delta_beta.weight": "blk.{}.ssm_beta.weight",
    "layers.{}.delta_dt.bias": "blk.{}.ssm_dt.bias",
    "layers.{}.delta_norm.weight": "blk.{}.ssm_norm.weight",
    "layers.{}.delta_o.weight": "blk.{}.attn_output.weight",
}
Config = TypeVar("Config", bound=KimiLinearConfig)


def with_kda_layers(config: Config, layer_types: Any, values: ConfigValues) -> Config:
    """Return the configuration with the attention layers, and with the shape of the delta nets that follows from their
    heads."""
    shape = config.delta_net
    heads, dim = shape.num_value_heads or config.heads, shape.key_head_dim
    shape = replace(shape, num_key_heads=heads, num_value_heads=heads, value_head_dim=dim, inner_size=heads * dim)
    attention_layers = read_attention_layers(values, layer_types, config.layers)
    return replace(config, delta_net=shape, attention_layers=attention_layers)


def usual_layer_types(layers: int) -> list[str]:
    """Return the default types of layers in transformers."""
    return [LAYER_TYPES[layer > 0 and layer % 4 == 0] for layer in range(layers)]


class KdaGgufSchema(LatentGgufSchema):
    """GGUF files of models with latent attention and Kimi's delta nets. Layers without KV heads are delta nets."""

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_types_by_kv_heads(gguf.values if values is None else values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, KimiLinearConfig)
        return with_kda_layers(config, values.get("layer_types") or self.usual_types(config.layers), values)

    def usual_types(self, layers: int) -> list[str]:
        """Return the types of layers in a file without a list of KV heads."""
        return []

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        """Return the usual metadata; attention layers have one KV head, that of the latent."""
        assert isinstance(config, KimiLinearConfig)
        single = replace(config, kv_heads=1)
        return {
            **super().extra_metadata(config),
            **kv_heads_metadata(single, self.names[0], config.attention_layers),
        }


@register
class KimiLinearGguf(KdaGgufSchema):
    """`kimi-linear`."""

    names = ("kimi-linear",)
    architecture = KimiLinear
    keys = gguf_keys(
        *LATENT_GGUF_KEYS,
        *KDA_GGUF_KEYS,
        *gguf_expert_keys(*V3_ATTRIBUTES, "scores"),
        without=("window", "rotary"),
    )
    constants = {**KIMI_CONSTANTS, **KDA_CONSTANTS}
    tensors = {
        **DECODER_TENSORS,
        **with_alternatives(LATENT_GGUF_TENSORS, KV_B_GGUF_TENSORS),
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
        **KDA_GGUF_TENSORS,
        "layers.{}.delta.decay": StoredAs("blk.{}.ssm_a", Squeeze((1,), to_four=True)),
        **{
            f"layers.{{}}.delta_{name}{end}.weight": f"blk.{{}}.ssm_{stored}{stored_end}.weight"
            for name, stored in (("alpha", "f"), ("z", "g"))
            for end, stored_end in (("_a", "_a"), ("", "_b"))
        },
    }
    allows_partial_rotary = False

    def usual_types(self, layers: int) -> list[str]:
        return usual_layer_types(layers)

    def find_unsupported(self, config: ModelConfig) -> str:
        assert isinstance(config, KimiLinearConfig)
        heads = config.delta_net.num_value_heads
        if heads != config.heads:
            return f"its delta nets have {heads} heads, its attention {config.heads}"
        if config.latent.q_lora_rank:
            return "its queries have a latent"
        return find_unsupported_routing(config, renormalize=True, has_dense_layers=True)
