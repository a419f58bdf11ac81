"""Qwen3: Llama with a norm on each head of queries and keys, and heads that need not fill the width."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("qwen3")
class Qwen3(Decoder):
    """The Llama layer; queries and keys are normed head by head before they are rotated (Yang et al. 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), norm="heads")
        return pre_norm(config, index, attention)
