"""GGUF files of Refact."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.refact import Refact
from sporelm.models.config import ModelConfig

REFACT_CONSTANTS: Final = {"rotary": 0, "alibi": 8.0}


@register
class RefactGguf(GgufSchema):
    """`refact`, with a single KV head."""

    names = ("refact",)
    architecture = Refact
    keys = gguf_keys(
        Key("layers", "block_count", "u32"),
        Key("width", "embedding_length", "u32"),
        Key("heads", "attention.head_count", "u32"),
        Key("kv_heads", "attention.head_count_kv", "u32"),
        Key("eps", "attention.layer_norm_rms_epsilon", "f32"),
        without=("head_dim", "rotary", "window"),
    )
    constants = REFACT_CONSTANTS
    tensors = DECODER_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return replace(super().config_from_metadata(gguf, values), kv_heads=1)
