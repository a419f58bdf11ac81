"""Flint: Qwen3 with attention sinks, and rotary positions only in layers with a window."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("flint")
class Flint(Decoder):
    """Qwen3's layer with a mixture (Recursive 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        window = config.window_of(index)
        rotates = window is not None
        attention = Attention(f"layers.{index}", config, window, norm="heads", rotates=rotates, sinks=True)
        return pre_norm(config, index, attention)
