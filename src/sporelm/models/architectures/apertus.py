"""Apertus: Llama with norms on each head, and an ungated feed-forward block with a learned activation."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.blocks.xielu_mlp import XieluMLP, xielu_params
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.params import Param


@architecture("apertus")
class Apertus(Decoder):
    """Pre-norm attention with norms of query and key heads, then xIELU (Swiss AI Initiative 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="heads"), XieluMLP(index, config))

    def params(self) -> list[Param]:
        return [*super().params(), *xielu_params(self.config.layers)]
