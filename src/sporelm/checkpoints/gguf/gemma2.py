"""GGUF files of Gemma 2."""

from dataclasses import replace
from typing import Final, TypeVar

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gemma import with_scaled_embedding
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gemma2 import Gemma2
from sporelm.models.config import ModelConfig

MIN_CAP: Final = 1e-3
MAX_CAP: Final = 1e6
DEFAULT_WINDOW: Final = 4096
DEFAULT_SCORE_CAP: Final = 50.0
DEFAULT_LOGIT_CAP: Final = 30.0
LARGEST_MODEL_LAYERS: Final = 46  # layers of the 27B, whose attention scores have another scale
SCORE_CAP_KEY: Final = Key("score_cap", "attn_logit_softcapping", "f32", MIN_CAP, MAX_CAP, OPTIONAL)
LOGIT_CAP_KEY: Final = Key("logit_cap", "final_logit_softcapping", "f32", MIN_CAP, MAX_CAP, OPTIONAL)
Config = TypeVar("Config", bound=ModelConfig)


def score_scale(config: ModelConfig, largest: int) -> float:
    """Return the scale of attention scores in GGUF files, which have no key for it.

    largest   number of layers of the model with another scale
    """
    size = config.width // config.heads if config.layers == largest else config.head_dim
    return float(size**-0.5)


def with_score_scale(config: Config, largest: int) -> Config:
    """Return the configuration with that scale."""
    return replace(config, scales=replace(config.scales, attention=score_scale(config, largest)))


def find_other_score_scale(config: ModelConfig, largest: int) -> str:
    """Return the clause that a GGUF file cannot hold the scale of attention scores; "" if it can."""
    is_usual = abs(config.attention_scale - score_scale(config, largest)) < 1e-6
    return "" if is_usual else "its query_pre_attn_scalar differs from the head width"


@register
class Gemma2Gguf(GgufSchema):
    """`gemma2`. Absent caps and an absent window mean the defaults."""

    names = ("gemma2",)
    architecture = Gemma2
    keys = gguf_keys(SCORE_CAP_KEY, LOGIT_CAP_KEY)
    tensors = DECODER_TENSORS | POST_NORM_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(2)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = with_score_scale(
            with_scaled_embedding(super().config_from_metadata(gguf, values)), LARGEST_MODEL_LAYERS
        )
        return replace(
            config,
            window=config.window if "attention.sliding_window" in gguf.values.values else DEFAULT_WINDOW,
            score_cap=config.score_cap or DEFAULT_SCORE_CAP,
            logit_cap=config.logit_cap or DEFAULT_LOGIT_CAP,
        )

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return {} if config.window else {"gemma2.attention.sliding_window": ("u32", 0)}

    def find_unsupported(self, config: ModelConfig) -> str:
        if config.score_cap is None or config.logit_cap is None:
            return "its scores or logits have no cap"
        return find_other_score_scale(config, LARGEST_MODEL_LAYERS)
