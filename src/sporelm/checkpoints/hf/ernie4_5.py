"""Hugging Face folders of ERNIE 4.5 (dense)."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class Ernie4_5ForCausalLM(HfSchema):
    """ERNIE 4.5, with one flag for all biases."""

    model_type = "ernie4_5"
    architecture = Llama
    keys = hf_keys(*(Key(name, "use_bias", "bool") for name in ("attention_bias", "attention_out_bias", "mlp_bias")))
    class_keys = {"use_bias": "mlp_bias"}
    defaults = {
        "tie_word_embeddings": True,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
    }
    constants = {"rope_style": "adjacent"}
    tensors = DECODER_TENSORS


@register
class Ernie4_5_ForCausalLM(Ernie4_5ForCausalLM):
    """The class name in the first folders."""
