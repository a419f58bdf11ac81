"""GGUF files of Qwen3-VL with a mixture of experts: its text model."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf.qwen3vl import DEEPSTACK_KEY, Qwen3VLGguf
from sporelm.checkpoints.gguf_tensors import expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.config import ModelConfig


@register
class Qwen3VLMoeGguf(Qwen3VLGguf):
    """`qwen3vlmoe`. The weights of a token's experts sum to one."""

    names = ("qwen3vlmoe",)
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn"), DEEPSTACK_KEY)
    constants = {"experts.renormalize": True}
    tensors = Qwen3VLGguf.tensors | expert_tensors(has_fused=True)

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_unsupported_routing(config, renormalize=True)
