"""Hugging Face folders of Granite 3 (dense)."""

from typing import Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.gguf.granite import MAX_SCALE, MIN_SCALE
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama

GRANITE_KEYS: Final = (
    Key("scales.embedding", "embedding_multiplier", "f32", MIN_SCALE, MAX_SCALE, 1.0),
    Key("scales.residual", "residual_multiplier", "f32", MIN_SCALE, MAX_SCALE, 1.0),
    Key("scales.attention", "attention_multiplier", "f32", MIN_SCALE, MAX_SCALE, 1.0),
    Key("scales.logits", "logits_scaling", "f32", MIN_SCALE, MAX_SCALE, 1.0),
    *HF_ATTENTION_BIAS,
)


@register
class GraniteForCausalLM(HfSchema):
    """Granite 3."""

    model_type = "granite"
    architecture = Llama
    keys = hf_keys(*GRANITE_KEYS, Key("mlp_bias", "mlp_bias", "bool"))
    class_keys = {"attention_bias": "attention_bias", "mlp_bias": "mlp_bias"}
    tensors = DECODER_TENSORS
