"""Hugging Face folders of Persimmon."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, MLP, NORM_BIAS_TENSORS, fused_qkv_tensors
from sporelm.checkpoints.row_numbers import QKV_ROWS_BY_KV_HEAD
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.persimmon import Persimmon
from sporelm.models.config import ModelConfig

# Parameters -> stored names, both without ".weight" and ".bias".
NORMS_AND_PRODUCTS: Final = {
    "output_norm": "model.final_layernorm",
    "layers.{}.attn_o": f"{ATTENTION}dense",
    "layers.{}.attn_q_norm": f"{ATTENTION}q_layernorm",
    "layers.{}.attn_k_norm": f"{ATTENTION}k_layernorm",
    "layers.{}.ffn_up": f"{MLP}dense_h_to_4h",
    "layers.{}.ffn_down": f"{MLP}dense_4h_to_h",
}


@register
class PersimmonForCausalLM(HfSchema):
    """Persimmon: by default half of each head is rotated."""

    model_type = "persimmon"
    architecture = Persimmon
    keys = hf_keys(
        Key("eps", "layer_norm_eps", "f32"),
        Key("has_head_norms", "qk_layernorm", "bool", default=True),
        without=("head_dim", "kv_heads"),
    )
    class_keys = {"qk_layernorm": "has_head_norms"}
    defaults = {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "max_position_embeddings": 16384}
    constants = ALL_BIASES
    supported = {"hidden_act": ("relu2",)}
    tensors = {
        **DECODER_TENSORS,
        **NORM_BIAS_TENSORS,
        **fused_qkv_tensors(f"{ATTENTION}query_key_value", QKV_ROWS_BY_KV_HEAD),
        **{
            f"{name}.{part}": f"{stored}.{part}"
            for name, stored in NORMS_AND_PRODUCTS.items()
            for part in ("weight", "bias")
        },
    }
    allows_partial_rotary = True

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"partial_rotary_factor": config.rotary / config.head_dim}
