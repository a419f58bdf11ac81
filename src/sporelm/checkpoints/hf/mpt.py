"""Hugging Face folders of MPT."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf.mpt import MAX_CLIP, MAX_OCTAVES
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, fused_qkv_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.mpt import Mpt
from sporelm.models.config import ModelConfig

LAYER: Final = "transformer.blocks.{}."
# Supported values of `attn_config`; the first is the default of transformers.
ATTENTION_JSON: Final = {
    "attn_type": "multihead_attention",
    "softmax_scale": None,
    "prefix_lm": False,
    "qk_ln": False,
    "attn_uses_sequence_id": False,
    "alibi": True,
}


@register
class MptForCausalLM(HfSchema):
    """MPT. config.json has an object about attention."""

    model_type = "mpt"
    architecture = Mpt
    keys = hf_keys(
        Key("layers", "n_layers", "u32"),
        Key("width", "d_model", "u32"),
        Key("heads", "n_heads", "u32"),
        Key("eps", "layer_norm_epsilon", "f32"),
        without=("ffn", "head_dim", "kv_heads"),
    )
    defaults = {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}
    constants = {"rotary": 0}
    supported = {"expansion_ratio": (4,), "no_bias": (True,), "logit_scale": (None,)}
    positions_key = "max_seq_len"
    ffn_widths = 4
    tensors = {
        **DECODER_TENSORS,
        "embedding.weight": "transformer.wte.weight",
        "output_norm.weight": "transformer.norm_f.weight",
        "layers.{}.attn_norm.weight": f"{LAYER}norm_1.weight",
        "layers.{}.attn_o.weight": f"{LAYER}attn.out_proj.weight",
        "layers.{}.ffn_norm.weight": f"{LAYER}norm_2.weight",
        "layers.{}.ffn_up.weight": f"{LAYER}ffn.up_proj.weight",
        "layers.{}.ffn_down.weight": f"{LAYER}ffn.down_proj.weight",
        **fused_qkv_tensors(f"{LAYER}attn.Wqkv", parts=("weight",)),
    }
    name_prefix = "transformer."

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        given = values.get("attn_config") or {}
        if not isinstance(given, dict):
            raise ModelFileError(f"{values.where}: attn_config must be an object (got {format_value(given)})")
        for key, supported in ATTENTION_JSON.items():
            if given.get(key, supported) != supported:
                what = f"{key} {format_value(given[key])} is not supported; {supported} is"
                raise UnsupportedModel(f"{values.where}: {what}")
        inner = ConfigValues(given, values.where)
        limit = inner.number("clip_qkv", 0, MAX_CLIP, 0.0) or None  # 0 means no limit, as in transformers
        return replace(config, alibi=inner.number("alibi_bias_max", 1, MAX_OCTAVES, 8.0), qkv_limit=limit)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        octaves = int(config.alibi) if config.alibi % 1 == 0 else config.alibi
        return {"attn_config": {**ATTENTION_JSON, "alibi_bias_max": octaves, "clip_qkv": config.qkv_limit}}


@register
class MPTForCausalLM(MptForCausalLM):
    """The class name in the first folders."""
