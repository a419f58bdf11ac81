"""Gemma 3: windows in most layers, which have another rotary base, and norms of query and key heads."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, GatedMLP, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("gemma3")
class Gemma3(Decoder):
    """Gemma 2's layer with norms of query and key heads in place of capped scores (Gemma team 2025)."""

    attends_images_both_ways = True

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, config, config.window_of(index), norm="heads")
        return pre_norm(config, index, attention, GatedMLP(name, config, "gelu_tanh"), behind=True)
