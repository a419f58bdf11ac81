"""Hugging Face folders of Hunyuan (dense)."""

from typing import Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.hunyuan import Hunyuan
from sporelm.models.config import MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH, ModelConfig

HUNYUAN_HEAD_NORM_TENSORS: Final[TensorTable] = {
    "layers.{}.attn_q_norm.weight": f"{ATTENTION}query_layernorm.weight",
    "layers.{}.attn_k_norm.weight": f"{ATTENTION}key_layernorm.weight",
}


def with_ntk_theta(values: ConfigValues) -> ConfigValues:
    """Return the values with a larger rotary base in place of `alpha`: "dynamic" scaling of these folders does not
    depend on the context (NTK-aware scaling)."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = values.get(key)
        if isinstance(rope, dict) and rope.get("alpha") and rope.get("rope_type", rope.get("type")) == "dynamic":
            inner = ConfigValues({**values.values, **rope}, "config.json")
            width = inner.integer("hidden_size", 1, MAX_WIDTH)
            heads = inner.integer("num_attention_heads", 1, MAX_HEADS)
            dim = inner.integer("head_dim", 4, MAX_HEAD_DIM, width // heads)
            factor = inner.number("alpha", 1.0, MAX_THETA) ** (dim / (dim - 2))
            theta = inner.number("rope_theta", 1.0, MAX_THETA, 10000.0) * factor
            return values.with_changes({key: None, "rope_theta": theta})
    return values


@register
class HunYuanDenseV1ForCausalLM(HfSchema):
    """Hunyuan (dense)."""

    model_type = "hunyuan_v1_dense"
    architecture = Hunyuan
    keys = hf_keys(*HF_ATTENTION_BIAS)
    class_keys = {"attention_bias": "attention_bias"}
    defaults = {"rms_norm_eps": 1e-5}
    supported = {"hidden_act": ("silu",), "use_qk_norm": (True,), "use_cla": (False,), "mlp_bias": (False,)}
    tensors = DECODER_TENSORS | HUNYUAN_HEAD_NORM_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return super().config_from_json(with_ntk_theta(values), dtype)
