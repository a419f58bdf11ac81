"""Hugging Face folders of Gemma 3: the text model alone, and the multimodal model."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gemma import with_scaled_embedding
from sporelm.checkpoints.gguf.gemma2 import LOGIT_CAP_KEY
from sporelm.checkpoints.gguf.gemma3 import LOCAL_THETA, WINDOW_STEP
from sporelm.checkpoints.hf.gemma import GEMMA_DEFAULTS, GEMMA_SUPPORTED, NORMS_LESS_ONE, stored_less_one
from sporelm.checkpoints.hf.gemma2 import AROUND_NORMS_LESS_ONE, query_scalar_json, with_query_scalar
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer, with_windows
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS, select_text_config
from sporelm.models.architectures.gemma3 import Gemma3
from sporelm.models.config import ModelConfig

GEMMA3_DEFAULTS: Final = {
    **GEMMA_DEFAULTS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
}


def with_rope_of_full_layers(values: ConfigValues) -> ConfigValues:
    """Return the values of the text model with the rotary parameters of layers without a window, and the base of the
    others as `rope_local_base_freq`. transformers 5 has a set for each type of layer."""
    values = values.with_values(select_text_config(dict(values.values)))
    kinds = values.get("rope_parameters")
    if not isinstance(kinds, dict) or not isinstance(local := kinds.get("sliding_attention"), dict):
        return values
    theta = {"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {}
    return values.with_changes({**theta, "rope_parameters": kinds.get("full_attention")})


@register
class Gemma3ForCausalLM(HfSchema):
    """Gemma 3's text model. transformers does not apply the cap of scores, although its configuration has the key."""

    model_type = "gemma3_text"
    architecture = Gemma3
    keys = hf_keys(LOGIT_CAP_KEY, Key("local_theta", "rope_local_base_freq", "f32", 1.0, MAX_THETA, LOCAL_THETA))
    class_keys = {"sliding_window": "window"}
    defaults = GEMMA3_DEFAULTS
    supported = {"hidden_activation": ("gelu_pytorch_tanh",), **GEMMA_SUPPORTED}
    tensors = DECODER_TENSORS | NORMS_LESS_ONE | AROUND_NORMS_LESS_ONE | stored_less_one(HEAD_NORM_TENSORS)
    prefix_variants = TEXT_MODEL_PREFIXES
    ignored_tensors = MULTIMODAL_TENSORS
    has_window_pattern = True
    counts_scaled_positions = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_rope_of_full_layers(values)
        config = with_query_scalar(with_scaled_embedding(super().config_from_json(values, dtype)), values)
        return with_windows(config, values, WINDOW_STEP, step_key="sliding_window_pattern")

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return query_scalar_json(config)


@register
class Gemma3ForConditionalGeneration(Gemma3ForCausalLM):
    """The multimodal Gemma 3; transformers does not cap its logits."""

    model_type = "gemma3"

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = values.with_values(select_text_config(dict(values.values))).with_changes(
            {"final_logit_softcapping": None}
        )
        return super().config_from_json(values, dtype)
