"""GGUF files of LFM2 with experts."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import GGUF_CHOICE_BIAS_KEY, find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf.lfm2 import LFM2_GGUF_KEYS, LFM2_TENSORS, Lfm2Gguf
from sporelm.checkpoints.gguf_tensors import CHOICE_BIAS_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.config import ModelConfig

LFM2_ROUTING: Final = {"experts.scores": "sigmoid", "experts.renormalize": True, "experts.epsilon": 1e-6}


@register
class Lfm2MoeGguf(Lfm2Gguf):
    """`lfm2moe`: LFM2 with a mixture of experts after the first layers."""

    names = ("lfm2moe",)
    keys = gguf_keys(
        *LFM2_GGUF_KEYS,
        *gguf_expert_keys("count", "used", "ffn", "leading", "scale"),
        GGUF_CHOICE_BIAS_KEY,
        *gguf_expert_keys("scores"),
    )
    constants = LFM2_ROUTING
    tensors = LFM2_TENSORS | expert_tensors() | CHOICE_BIAS_TENSORS

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_unsupported_routing(config, renormalize=True, has_dense_layers=True)
