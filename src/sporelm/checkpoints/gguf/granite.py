"""GGUF files of Granite 3 (dense)."""

from dataclasses import replace
from typing import Final, TypeVar

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

MIN_SCALE = 1e-6
MAX_SCALE = 1e6
GRANITE_KEYS: Final = (
    Key("scales.embedding", "embedding_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
    Key("scales.residual", "residual_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
    Key("scales.attention", "attention.scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
    Key("scales.logits", "logit_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
)
Config = TypeVar("Config", bound=ModelConfig)


@register
class GraniteGguf(GgufSchema):
    """`granite`: Llama with scales on the embedding, on residuals, on attention scores and on logits (IBM 2024)."""

    names = ("granite",)
    architecture = Llama
    keys = gguf_keys(*GRANITE_KEYS)
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_default_score_scale(super().config_from_metadata(gguf, values), values or gguf.values)


def with_default_score_scale(config: Config, values: ConfigValues) -> Config:
    """Return the configuration with the default scale of attention scores if the file has none."""
    return config if values.has("attention.scale") else replace(config, scales=replace(config.scales, attention=None))
