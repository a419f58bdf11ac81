"""GGUF files of Baichuan 1 and 2."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.baichuan import Baichuan
from sporelm.models.config import ModelConfig

# Layers of the 7B and of the 13B; files differ in nothing else that tells their positions.
ROTARY_LAYERS: Final = 32
ALIBI_LAYERS: Final = 40
ALIBI_OCTAVES: Final = 8.0


@register
class BaichuanGguf(GgufSchema):
    """`baichuan`. Queries and keys are permuted; the rows of Baichuan 2's output are stored normalized."""

    names = ("baichuan",)
    architecture = Baichuan
    keys = gguf_keys(without=("window",))
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        if config.layers not in (ROTARY_LAYERS, ALIBI_LAYERS):
            what = f"{config.layers} layers: {ROTARY_LAYERS} layers use RoPE, {ALIBI_LAYERS} use ALiBi"
            raise UnsupportedModel(f"{gguf.where}: {what}; other numbers are not supported")
        return replace(config, alibi=ALIBI_OCTAVES if config.layers == ALIBI_LAYERS else 0.0)

    def find_unsupported(self, config: ModelConfig) -> str:
        layers = ALIBI_LAYERS if config.alibi else ROTARY_LAYERS
        positions = "linear biases" if config.alibi else "rotary positions"
        return "" if config.layers == layers else f"it has {config.layers} layers and {positions}"
