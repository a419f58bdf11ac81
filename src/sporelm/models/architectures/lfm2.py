"""LFM2, with experts or without: gated short convolutions and a few layers of attention."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, ShortConv, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Lfm2Config(ModelConfig):
    """conv_kernel: rows that a convolution reads. attention_layers: the layers with attention."""

    conv_kernel: int
    attention_layers: frozenset[int] = frozenset()


@architecture("lfm2", Lfm2Config)
class Lfm2(Decoder[Lfm2Config]):
    """The Llama layer with norms of heads, and a short convolution in place of most of its attention (Liquid AI
    2025)."""

    def layer(self, config: Lfm2Config, index: int) -> Layer:
        name = f"layers.{index}"
        if index in config.attention_layers:
            return pre_norm(config, index, Attention(name, config, config.window_of(index), norm="heads"))
        return pre_norm(config, index, ShortConv(name, config, config.conv_kernel))
