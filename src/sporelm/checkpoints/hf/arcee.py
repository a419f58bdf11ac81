"""Hugging Face folders of Arcee's AFM."""

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.arcee import Arcee


@register
class ArceeForCausalLM(HfSchema):
    """AFM."""

    model_type = "arcee"
    architecture = Arcee
    keys = hf_keys(*HF_ATTENTION_BIAS, Key("mlp_bias", "mlp_bias", "bool"))
    class_keys = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}
    defaults = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    supported = {"hidden_act": ("relu2",)}
    tensors = DECODER_TENSORS
