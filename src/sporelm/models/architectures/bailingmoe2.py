"""Ling 2 and Ring 2: Ling 1 with a norm on each head of queries and keys."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("bailingmoe2")
class BailingMoe2(Decoder):
    """The Llama layer with norms of heads; a mixture in place of its feed-forward block (inclusionAI 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="heads"))
