"""Hugging Face folders of Apertus."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, LAYER
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Stack
from sporelm.models.architectures.apertus import Apertus
from sporelm.models.blocks.xielu_mlp import NUMBERS
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import UNSCALED

# transformers' defaults for a config.json without rotary parameters.
DEFAULT_ROPE: Final = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


@register
class ApertusForCausalLM(HfSchema):
    """Apertus."""

    model_type = "apertus"
    architecture = Apertus
    keys = hf_keys(*HF_ATTENTION_BIAS)
    class_keys = {"attention_bias": "attention_bias"}
    defaults = {"rms_norm_eps": 1e-5, "max_position_embeddings": 65536}
    supported = {"hidden_act": ("xielu",), "mlp_bias": (False,), "qk_norm": (True,), "post_norm": (False,)}
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **{f"xielu.{name}": StoredAs(f"model.layers.{{e}}.mlp.act_fn.{name}", Stack()) for name in NUMBERS},
        "layers.{}.attn_norm.weight": f"{LAYER}attention_layernorm.weight",
        "layers.{}.ffn_norm.weight": f"{LAYER}feedforward_layernorm.weight",
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        if not (values.get("rope_scaling") or values.get("rope_parameters")):
            values = values.with_changes({"rope_scaling": None, "rope_parameters": DEFAULT_ROPE})
        return super().config_from_json(values, dtype)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        # Without the key, transformers would scale positions.
        plain = {"rope_type": "default", "rope_theta": config.rope_theta}
        return {"rope_parameters": plain} if config.rope_scaling == UNSCALED else {}
