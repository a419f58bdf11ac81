"""GGUF files of MiniCPM 1 and 2."""

from dataclasses import replace
from typing import Final, TypeVar

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

MIN_SCALE: Final = 1e-6
MAX_SCALE: Final = 1e6
Config = TypeVar("Config", bound=ModelConfig)


def with_scales_of_2b(config: Config) -> Config:
    """Return the configuration with the scales of MiniCPM-2B, for files without scales: old ones and those of MiniCPM
    3."""
    residual, logits = 1.4 / config.layers**0.5, config.width / 256
    return replace(config, scales=replace(config.scales, embedding=12.0, residual=residual, logits=logits))


@register
class MiniCpmGguf(GgufSchema):
    """`minicpm`: Llama with scales on the embedding, on residuals and on the last rows (Hu et al. 2024)."""

    names = ("minicpm",)
    architecture = Llama
    keys = gguf_keys(
        Key("scales.embedding", "embedding_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
        Key("scales.residual", "residual_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
        Key("scales.logits", "logit_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
    )
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        return config if gguf.values.has("embedding_scale") else with_scales_of_2b(config)
