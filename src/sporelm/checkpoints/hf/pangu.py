"""Hugging Face folders of openPangu Embedded."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class PanguEmbeddedForCausalLM(HfSchema):
    """openPangu Embedded: one flag for the biases of attention."""

    model_type = "PanguEmbedded"
    architecture = Llama
    keys = hf_keys(
        Key("attention_bias", "bias", "bool", default=True), Key("attention_out_bias", "bias", "bool", default=True)
    )
    class_keys = {"bias": "attention_bias"}
    defaults = {"bias": True, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "rope_theta": 16e6}
    tensors = DECODER_TENSORS
