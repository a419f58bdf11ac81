"""Granite with a window in three of four layers, a sink for each head, layers without rotary positions, and experts."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("granite_swa")
class GraniteSWA(Decoder):
    """Granite's layer with attention sinks (IBM 2026; Xiao et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        rotates, window = index not in config.nope_layers, config.window_of(index)
        return pre_norm(config, index, Attention(f"layers.{index}", config, window, rotates=rotates, sinks=True))
