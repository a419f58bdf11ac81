"""GGUF files of OLMo Hybrid. llama.cpp does not support it; the names are ours."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import DELTA_NET_GGUF_KEYS, SPLIT_CONV_GGUF_TENSORS, with_delta_net_layers
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmo_hybrid import OlmoHybrid, OlmoHybridConfig
from sporelm.models.config import ModelConfig


def with_last_layer_attention(config: OlmoHybridConfig, values: ConfigValues) -> OlmoHybridConfig:
    """Return the configuration with attention in the last layer if no other layer has it: for models with fewer than
    four layers."""
    if values.get("layer_types") is not None or config.attention_layers:
        return config
    return replace(config, attention_layers=frozenset({config.layers - 1}))


@register
class OlmoHybridGguf(GgufSchema):
    """`olmo-hybrid`. Folders are not converted to it."""

    names = ("olmo-hybrid",)
    architecture = OlmoHybrid
    keys = gguf_keys(*DELTA_NET_GGUF_KEYS)
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **POST_NORM_TENSORS,
        **{f"layers.{{}}.delta_{name}.weight": f"blk.{{}}.attn_{name}.weight" for name in "qkv"},
        **SPLIT_CONV_GGUF_TENSORS,
        "layers.{}.delta_alpha.weight": "blk.{}.ssm_alpha.weight",
        "layers.{}.delta_beta.weight": "blk.{}.ssm_beta.weight",
        "layers.{}.delta_z.weight": "blk.{}.attn_gate.weight",
        "layers.{}.delta.decay": "blk.{}.ssm_a",
        "layers.{}.delta_dt.bias": "blk.{}.ssm_dt.bias",
        "layers.{}.delta_norm.weight": "blk.{}.ssm_norm.weight",
        "layers.{}.delta_o.weight": "blk.{}.ssm_out.weight",
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, OlmoHybridConfig)
        return with_last_layer_attention(with_delta_net_layers(config, gguf.values, is_gguf=True), gguf.values)

    def find_unsupported(self, config: ModelConfig) -> str:
        return "no GGUF architecture has its layers"
