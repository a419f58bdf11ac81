"""Hugging Face folders of GPT-NeoX, Pythia and Dolly 2."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, activation_key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, fused_qkv_tensors
from sporelm.checkpoints.row_numbers import QKV_ROWS_BY_KV_HEAD
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.gptneox import GPTNeoX
from sporelm.models.config import ModelConfig

PARTS: Final = ("weight", "bias")


def gptneox_tensors(prefix: str) -> TensorTable:
    """Return the tensors of GPT-NeoX without its output. `prefix` precedes their names."""
    layer = f"{prefix}layers.{{}}."
    found: TensorTable = {**DECODER_TENSORS, "embedding.weight": f"{prefix}embed_in.weight"}
    for part in PARTS:
        found[f"output_norm.{part}"] = f"{prefix}final_layer_norm.{part}"
        found[f"layers.{{}}.attn_norm.{part}"] = f"{layer}input_layernorm.{part}"
        found[f"layers.{{}}.ffn_norm.{part}"] = f"{layer}post_attention_layernorm.{part}"
        found[f"layers.{{}}.attn_o.{part}"] = f"{layer}attention.dense.{part}"
        found[f"layers.{{}}.ffn_up.{part}"] = f"{layer}mlp.dense_h_to_4h.{part}"
        found[f"layers.{{}}.ffn_down.{part}"] = f"{layer}mlp.dense_4h_to_h.{part}"
    return found | fused_qkv_tensors(f"{layer}attention.query_key_value", QKV_ROWS_BY_KV_HEAD)


def with_rotary_names(values: ConfigValues, default_share: float = 0.25) -> ConfigValues:
    """Return the values with `rotary_pct` and `rotary_emb_base` under the usual names. Outside the rotary parameters
    transformers reads only these names; null is not allowed."""
    return values.with_changes(
        {
            "partial_rotary_factor": values.get("rotary_pct", default_share),
            "rope_theta": values.get("rotary_emb_base", 10000),
        }
    )


def rotary_json(config: ModelConfig) -> dict[str, Any]:
    """Return `rotary_pct` and `rotary_emb_base`."""
    return {"rotary_pct": config.rotary / config.head_dim, "rotary_emb_base": config.rope_theta}


@register
class GPTNeoXForCausalLM(HfSchema):
    """GPT-NeoX."""

    model_type = "gpt_neox"
    architecture = GPTNeoX
    keys = hf_keys(
        Key("eps", "layer_norm_eps", "f32"),
        Key("parallel", "use_parallel_residual", "bool", default=True),
        activation_key("hidden_act", "gelu"),
        Key("attention_bias", "attention_bias", "bool", default=True),
        Key("attention_out_bias", "attention_bias", "bool", default=True),
        without=("kv_heads", "head_dim"),
    )
    class_keys = {"use_parallel_residual": "parallel", "attention_bias": "attention_bias"}
    defaults = {"layer_norm_eps": 1e-5}
    constants = {"mlp_bias": True}
    supported = {}
    # transformers calls the output "lm_head" since 5.0.
    tensors = {**gptneox_tensors("gpt_neox."), "output.weight": ("embed_out.weight", "lm_head.weight")}
    ignored_tensors = tuple(
        f"gpt_neox.layers.{{}}.attention.{end}" for end in ("bias", "masked_bias", "rotary_emb.inv_freq")
    )
    allows_partial_rotary = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return super().config_from_json(with_rotary_names(values), dtype)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return rotary_json(config)
