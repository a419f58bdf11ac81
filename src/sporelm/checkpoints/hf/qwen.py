"""Hugging Face folders of Qwen 1."""

from typing import Any

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.qwen import with_half_ffn
from sporelm.checkpoints.hf.exaone import GPT2_LAYER, GPT2_NAMED_TENSORS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import fused_qkv_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig


@register
class QWenLMHeadModel(HfSchema):
    """Qwen 1: Llama under GPT-2's names."""

    model_type = "qwen"
    architecture = Llama
    keys = hf_keys(Key("eps", "layer_norm_epsilon", "f32"), without=("head_dim", "kv_heads"))
    defaults = {"layer_norm_epsilon": 1e-6, "seq_length": 8192}
    supported = {"no_bias": (True,), "rotary_pct": (1.0,), "scale_attn_weights": (True,)}
    positions_key = "seq_length"
    tensors = {
        **GPT2_NAMED_TENSORS,
        "layers.{}.attn_o.weight": f"{GPT2_LAYER}attn.c_proj.weight",
        "layers.{}.ffn_up.weight": f"{GPT2_LAYER}mlp.w1.weight",
        "layers.{}.ffn_gate.weight": f"{GPT2_LAYER}mlp.w2.weight",
        **fused_qkv_tensors(f"{GPT2_LAYER}attn.c_attn"),
    }
    ignored_tensors = ("transformer.rotary_emb.inv_freq",)
    name_prefix = "transformer."

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = values.with_changes({"rope_theta": values.get("rotary_emb_base")})
        return with_half_ffn(super().config_from_json(values, dtype))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        # Within `seq_length`, dynamic NTK and log-n scaling have no effect.
        return {
            "intermediate_size": 2 * config.ffn,
            "rotary_emb_base": config.rope_theta,
            "seq_length": config.context_length,
        }
