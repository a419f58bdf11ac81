"""Kolibri 1: norms before and after blocks and of each head; layers with full attention have no rotary positions."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("kolibri1")
class Kolibri1(Decoder):
    """The Llama layer with norms of heads, norms after its blocks, and a mixture (Aleph Alpha 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        rotates = index not in config.nope_layers
        window = config.window_of(index)
        attention = Attention(f"layers.{index}", config, window, norm="heads", rotates=rotates)
        return pre_norm(config, index, attention, behind=True)
