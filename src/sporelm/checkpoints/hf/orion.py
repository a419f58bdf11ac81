"""Hugging Face folders of Orion."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.orion import Orion


@register
class OrionForCausalLM(HfSchema):
    """Orion. In config.json, `rms_norm_eps` is the epsilon of its layer norms."""

    model_type = "orion"
    architecture = Orion
    keys = hf_keys(Key("eps", "rms_norm_eps", "f32"))
    defaults = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
    supported = {"hidden_act": ("silu",), "attention_bias": (False,)}
    tensors = DECODER_TENSORS | NORM_BIAS_TENSORS
