"""GGUF files of OLMoE."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.olmoe import Olmoe
from sporelm.models.config import ModelConfig


@register
class OlmoeGguf(GgufSchema):
    """`olmoe`. Files have no key for bounds on queries, keys and values. Expert weights are not renormalized."""

    names = ("olmoe",)
    architecture = Olmoe
    keys = gguf_keys(*gguf_expert_keys("count", "used"))
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | expert_tensors()

    def find_unsupported(self, config: ModelConfig) -> str:
        if config.qkv_limit:
            return "its queries, keys and values have a limit"
        return find_unsupported_routing(config, renormalize=False)
