"""Hugging Face folders of Falcon."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, fused_qkv_tensors
from sporelm.checkpoints.row_numbers import QKV_ROWS_BY_KV_HEAD
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.falcon import Falcon, FalconConfig
from sporelm.models.config import ModelConfig

LAYER: Final = "transformer.h.{}."
# Parameters -> stored names, both without ".weight" and ".bias".
NORMS_AND_PRODUCTS: Final = {
    "output_norm": "transformer.ln_f",
    "layers.{}.attn_norm": f"{LAYER}input_layernorm",
    "layers.{}.attn_norm_2": f"{LAYER}ln_attn",
    "layers.{}.ffn_norm": f"{LAYER}ln_mlp",
    "layers.{}.middle_norm": f"{LAYER}post_attention_layernorm",  # of sequential blocks
    "layers.{}.attn_o": f"{LAYER}self_attention.dense",
    "layers.{}.ffn_up": f"{LAYER}mlp.dense_h_to_4h",
    "layers.{}.ffn_down": f"{LAYER}mlp.dense_4h_to_h",
}


def with_kv_heads(values: ConfigValues) -> ConfigValues:
    """Return the values with KV heads and norms. The decoder of the 40B has groups of queries and two norms; that of
    the 7B has one KV head, or one for each query head."""
    heads = values.get("num_attention_heads")
    if values.get("new_decoder_architecture"):
        norms = values.get("num_ln_in_parallel_attn")
        return values.with_values({"num_kv_heads": heads, **values.values, "two_norms": norms in (None, 2)})
    kv_heads = 1 if values.get("multi_query", True) else heads
    return values.with_changes({"num_kv_heads": kv_heads, "two_norms": False})


@register
class FalconForCausalLM(HfSchema):
    """Falcon."""

    model_type = "falcon"
    architecture = Falcon
    keys = hf_keys(
        Key("kv_heads", "num_kv_heads", "u32"),
        Key("ffn", "ffn_hidden_size", "u32"),
        Key("eps", "layer_norm_epsilon", "f32"),
        Key("has_two_norms", "two_norms", "bool"),
        Key("parallel", "parallel_attn", "bool", default=True),
        *(Key(name, "bias", "bool") for name in ("attention_bias", "attention_out_bias", "mlp_bias")),
        without=("head_dim",),
    )
    defaults = {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}
    constants = {"parallel": True}
    supported = {"activation": ("gelu",)}
    ffn_widths = 4
    tensors = {
        **DECODER_TENSORS,
        "embedding.weight": "transformer.word_embeddings.weight",
        **{
            f"{name}.{part}": f"{stored}.{part}"
            for name, stored in NORMS_AND_PRODUCTS.items()
            for part in ("weight", "bias")
        },
        **fused_qkv_tensors(f"{LAYER}self_attention.query_key_value", QKV_ROWS_BY_KV_HEAD),
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(with_kv_heads(values), dtype)
        if not config.parallel and values.flag("new_decoder_architecture", False):
            what = "parallel_attn False is not supported with new_decoder_architecture"
            raise UnsupportedModel(f"{values.where}: {what}")
        return replace(config, alibi=8.0, rotary=0) if values.flag("alibi", False) else config

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, FalconConfig)
        return {
            "new_decoder_architecture": config.has_two_norms or config.kv_heads > 1,
            "num_ln_in_parallel_attn": 1 + config.has_two_norms,
            "multi_query": True,
        }
