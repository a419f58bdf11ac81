"""GGUF files of DeepSeek MoE (V1)."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import (
    DECODER_TENSORS,
    PERMUTED_QK_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig


@register
class DeepseekGguf(GgufSchema):
    """`deepseek`: Llama with many small experts and shared ones, after dense layers (Dai et al. 2024)."""

    names = ("deepseek",)
    architecture = Llama
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn", "shared", "leading", "scale"))
    constants = {"experts.epsilon": 1e-20}
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_unsupported_routing(config, renormalize=False, has_dense_layers=True)
