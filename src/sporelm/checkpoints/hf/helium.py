"""Hugging Face folders of Helium."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class HeliumForCausalLM(HfSchema):
    """Helium: Llama with heads rotated as adjacent pairs."""

    model_type = "helium"
    architecture = Llama
    keys = hf_keys(Key("attention_bias", "attention_bias", "bool"), Key("mlp_bias", "mlp_bias", "bool"))
    class_keys = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}
    defaults = {
        "num_key_value_heads": 20,
        "head_dim": 128,
        "rms_norm_eps": 1e-8,
        "rope_theta": 1e5,
        "max_position_embeddings": 4096,
    }
    constants = {"rope_style": "adjacent"}
    tensors = DECODER_TENSORS
