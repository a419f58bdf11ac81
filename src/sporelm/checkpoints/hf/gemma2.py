"""Hugging Face folders of Gemma 2."""

from dataclasses import replace
from typing import Any, Final, TypeVar

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gemma import with_scaled_embedding
from sporelm.checkpoints.gguf.gemma2 import LOGIT_CAP_KEY, MAX_CAP, MIN_CAP, SCORE_CAP_KEY
from sporelm.checkpoints.hf.gemma import GEMMA_DEFAULTS, GEMMA_SUPPORTED, NORMS_LESS_ONE, stored_less_one
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER, POST_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer, with_windows
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gemma2 import Gemma2
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder

# Norms before the feed-forward block and after both blocks, stored as weight - 1.
AROUND_NORMS_LESS_ONE: Final = stored_less_one(
    {"layers.{}.ffn_norm.weight": f"{LAYER}pre_feedforward_layernorm.weight", **POST_NORM_TENSORS}
)
GEMMA2_DEFAULTS: Final = {
    **GEMMA_DEFAULTS,
    "num_key_value_heads": 4,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
Config = TypeVar("Config", bound=ModelConfig)


def with_query_scalar(config: Config, values: ConfigValues) -> Config:
    """Return the configuration with attention scores scaled by `query_pre_attn_scalar`."""
    scale = values.number("query_pre_attn_scalar", MIN_CAP, MAX_CAP, 256.0) ** -0.5
    return replace(config, scales=replace(config.scales, attention=scale))


def query_scalar_json(config: ModelConfig) -> dict[str, Any]:
    """Return the key of the score scale."""
    value = round(config.attention_scale**-2, 3)
    return {"query_pre_attn_scalar": int(value) if value == int(value) else value}


@register
class Gemma2ForCausalLM(HfSchema):
    """Gemma 2."""

    model_type = "gemma2"
    architecture: type[Decoder] = Gemma2
    keys = hf_keys(SCORE_CAP_KEY, LOGIT_CAP_KEY)
    class_keys = {"sliding_window": "window"}
    defaults = GEMMA2_DEFAULTS
    supported = {"hidden_activation": ("gelu_pytorch_tanh",), **GEMMA_SUPPORTED}
    tensors = DECODER_TENSORS | NORMS_LESS_ONE | AROUND_NORMS_LESS_ONE
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(2)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = with_scaled_embedding(super().config_from_json(values, dtype))
        return with_windows(with_query_scalar(config, values), values, 2)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return query_scalar_json(config)
