"""Hugging Face folders of Nemotron 4 and Minitron."""

from typing import Any

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.hf.gemma import NORMS_LESS_ONE
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.nemotron import Nemotron
from sporelm.models.config import ModelConfig


@register
class NemotronForCausalLM(HfSchema):
    """Nemotron. Stored weights of layer norms are one less; by default half of each head is rotated."""

    model_type = "nemotron"
    architecture = Nemotron
    keys = hf_keys(Key("eps", "norm_eps", "f32"), *HF_ATTENTION_BIAS, Key("mlp_bias", "mlp_bias", "bool"))
    class_keys = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}
    defaults = {"norm_eps": 1e-5, "max_position_embeddings": 4096, "partial_rotary_factor": 0.5}
    supported = {"hidden_act": ("relu2",)}
    tensors = DECODER_TENSORS | NORMS_LESS_ONE | NORM_BIAS_TENSORS
    allows_partial_rotary = True

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"partial_rotary_factor": config.rotary / config.head_dim}
