"""GGUF files of StarCoder 1 and SantaCoder."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import GGUF_ACTIVATION_KEY, Key, activation_key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES, GPT2_KEYS, GPT2_TENSORS
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.starcoder import StarCoder
from sporelm.models.config import ModelConfig


@register
class StarCoderGguf(GgufSchema):
    """`starcoder`."""

    names = ("starcoder",)
    architecture = StarCoder
    keys = gguf_keys(
        *GPT2_KEYS,
        Key("kv_heads", "attention.head_count_kv", "u32"),
        activation_key(GGUF_ACTIVATION_KEY, "gelu_pytorch_tanh"),
        without=("head_dim", "rotary", "window"),
    )
    constants = {"rotary": 0, **ALL_BIASES}
    tensors = GPT2_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return replace(super().config_from_metadata(gguf, values), kv_heads=1)
