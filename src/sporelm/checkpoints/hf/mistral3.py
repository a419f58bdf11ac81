"""Hugging Face folders of Ministral 3 and Mistral Small 3.1."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.mistral3 import TEMPERATURE_KEY, check_temperature
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS, select_text_config
from sporelm.models.architectures.mistral3 import Mistral3, Mistral3Config
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import YarnScaling

BETA: Final = "llama_4_scaling_beta"
# transformers' defaults for a config.json without rotary parameters.
DEFAULT_ROPE: Final = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    BETA: 0.1,
}
# transformers' defaults for the text model, by its type.
MISTRAL_DEFAULTS: Final = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
MINISTRAL_DEFAULTS: Final = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}


def with_ministral_rope(values: ConfigValues) -> ConfigValues:
    """Return the values of the text model. Ministral's rotary parameters contain the temperature scale, which moves to
    a key of ours, and repeat `max_position_embeddings`."""
    found = select_text_config(dict(values.values))
    if found.get("model_type") != "ministral3":  # the text model of Mistral Small is transformers' Mistral
        return values.with_values(MISTRAL_DEFAULTS | found)
    found = MINISTRAL_DEFAULTS | found
    key = "rope_parameters" if found.get("rope_parameters") or not found.get("rope_scaling") else "rope_scaling"
    given = found.get(key) or DEFAULT_ROPE
    if not isinstance(given, Mapping):
        return values.with_values(found)
    rope = {name: value for name, value in given.items() if name not in (BETA, "max_position_embeddings")}
    return values.with_values({**found, key: rope, BETA: given.get(BETA)})


@register
class Ministral3ForCausalLM(HfSchema):
    """Ministral 3."""

    model_type = "ministral3"
    architecture = Mistral3
    keys = hf_keys(TEMPERATURE_KEY._replace(key=BETA))
    defaults: Mapping[str, Any] = MINISTRAL_DEFAULTS
    supported = {
        "hidden_act": ("silu",),
        "sliding_window": (None,),
        "model_type": ("ministral3", "mistral", "mistral3"),
    }
    tensors = DECODER_TENSORS
    prefix_variants = TEXT_MODEL_PREFIXES
    ignored_tensors = MULTIMODAL_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> Mistral3Config:
        config = super().config_from_json(with_ministral_rope(values), dtype)
        assert isinstance(config, Mistral3Config)
        check_temperature(config, config.temperature_scale, values.where)
        return config

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Mistral3Config)
        scaling = config.rope_scaling
        rope: dict[str, Any] = {
            "rope_type": "default",
            "original_max_position_embeddings": config.context_length,
        }
        if isinstance(scaling, YarnScaling):
            rope = {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
                "attention_factor": scaling.attention,
            }
        rope |= {"rope_theta": config.rope_theta, BETA: config.temperature_scale}
        return {"rope_scaling": None, "rope_parameters": rope}


@register
class Mistral3ForConditionalGeneration(Ministral3ForCausalLM):
    """The multimodal Ministral 3 or Mistral Small 3.1."""

    model_type = "mistral3"
    defaults = {"tie_word_embeddings": True}
