"""GGUF files of Gemma 1."""

from dataclasses import replace
from typing import TypeVar

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gemma import Gemma
from sporelm.models.config import ModelConfig

Config = TypeVar("Config", bound=ModelConfig)


@register
class GemmaGguf(GgufSchema):
    """`gemma`. Norms are stored unchanged."""

    names = ("gemma",)
    architecture = Gemma
    keys = gguf_keys(without=("window",))
    tensors = DECODER_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_scaled_embedding(super().config_from_metadata(gguf, values))


def with_scaled_embedding(config: Config) -> Config:
    """Return the configuration with embeddings scaled by the square root of the width."""
    return replace(config, scales=replace(config.scales, embedding=config.width**0.5))
