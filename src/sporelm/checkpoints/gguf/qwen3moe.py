"""GGUF files of Qwen3-30B-A3B and Qwen3-235B-A22B."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.qwen3 import Qwen3
from sporelm.models.config import ModelConfig


@register
class Qwen3MoeGguf(GgufSchema):
    """`qwen3moe`: Qwen3 with a mixture of experts, whose weights sum to one."""

    names = ("qwen3moe",)
    architecture = Qwen3
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn"))
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors()
    llama_cpp_has_window = False

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        if config.experts is None:
            return config
        return replace(config, experts=replace(config.experts, renormalize=True))

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_unsupported_routing(config, renormalize=True)
