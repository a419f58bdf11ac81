"""GGUF files of Ministral 3 and Mistral Small 3.1."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.mistral3 import Mistral3, Mistral3Config
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import YarnScaling

TEMPERATURE_KEY: Final = Key("temperature_scale", "attention.temperature_scale", "f32", 0, 100, 0.0)


def check_temperature(config: ModelConfig, temperature_scale: float, where: str) -> None:
    """Raise UnsupportedModel for a temperature scale of queries without YaRN's original context."""
    if temperature_scale and not isinstance(config.rope_scaling, YarnScaling):
        raise UnsupportedModel(f"{where}: a temperature scale of queries needs YaRN's original context")


@register
class Mistral3Gguf(GgufSchema):
    """`mistral3`. Queries and keys are permuted."""

    names = ("mistral3",)
    architecture = Mistral3
    keys = gguf_keys(TEMPERATURE_KEY, without=("window",))
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> Mistral3Config:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Mistral3Config)
        check_temperature(config, config.temperature_scale, gguf.where)
        return config
