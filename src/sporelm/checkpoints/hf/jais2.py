"""Hugging Face folders of Jais 2."""

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.nemotron import Nemotron


@register
class Jais2ForCausalLM(HfSchema):
    """Jais 2: biases everywhere by default."""

    model_type = "jais2"
    architecture = Nemotron
    keys = hf_keys(Key("eps", "layer_norm_eps", "f32"), *HF_ATTENTION_BIAS, Key("mlp_bias", "mlp_bias", "bool"))
    class_keys = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}
    defaults = {"layer_norm_eps": 1e-5, "max_position_embeddings": 8192, "attention_bias": True, "mlp_bias": True}
    supported = {"hidden_act": ("relu2",)}
    tensors = DECODER_TENSORS | NORM_BIAS_TENSORS
