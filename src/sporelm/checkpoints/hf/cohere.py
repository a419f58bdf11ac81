"""Hugging Face folders of Command-R, Command-R+ and Aya."""

from typing import Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.cohere import COHERE_CONSTANTS, MAX_SCALE, MIN_SCALE
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.cohere import Cohere
from sporelm.models.config import ModelConfig

COHERE_KEYS: Final = (
    Key("eps", "layer_norm_eps", "f32"),
    Key("scales.output", "logit_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
    *HF_ATTENTION_BIAS,
)
COHERE_DEFAULTS: Final = {
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
}


@register
class CohereForCausalLM(HfSchema):
    """Command-R. Its folders store the trained context length as `model_max_length`."""

    model_type = "cohere"
    architecture = Cohere
    keys = hf_keys(*COHERE_KEYS, Key("has_head_norms", "use_qk_norm", "bool"))
    class_keys = {"attention_bias": "attention_bias", "use_qk_norm": "has_head_norms"}
    defaults = {**COHERE_DEFAULTS, "rope_theta": 500000.0}
    constants = COHERE_CONSTANTS
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        length = values.get("model_max_length")
        if length is not None:
            values = values.with_changes({"max_position_embeddings": length})
        return super().config_from_json(values, dtype)
