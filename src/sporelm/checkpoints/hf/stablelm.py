"""Hugging Face folders of StableLM."""

from typing import Any

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Stack
from sporelm.models.architectures.stablelm import StableLM
from sporelm.models.config import ModelConfig


@register
class StableLmForCausalLM(HfSchema):
    """StableLM: by default a quarter of each head is rotated."""

    model_type = "stablelm"
    architecture = StableLM
    keys = hf_keys(
        Key("eps", "layer_norm_eps", "f32"),
        Key("attention_bias", "use_qkv_bias", "bool"),
        Key("parallel", "use_parallel_residual", "bool"),
        Key("has_head_norms", "qk_layernorm", "bool"),
    )
    class_keys = {
        "use_qkv_bias": "attention_bias",
        "use_parallel_residual": "parallel",
        "qk_layernorm": "has_head_norms",
    }
    defaults = {
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "partial_rotary_factor": 0.25,
        "layer_norm_eps": 1e-5,
    }
    tensors = {
        **DECODER_TENSORS,
        **NORM_BIAS_TENSORS,
        **{
            f"layers.{{}}.attn_{name}_norm.weight": StoredAs(f"{ATTENTION}{name}_layernorm.norms.{{e}}.weight", Stack())
            for name in "qk"
        },
    }
    allows_partial_rotary = True

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"partial_rotary_factor": config.rotary / config.head_dim}
