"""PLaMo 3: norms around both blocks, windows in seven of eight layers, which have a rotary base of their own."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("plamo3")
class Plamo3(Decoder):
    """Norms before and after both blocks, and on heads of queries and keys (Preferred Networks 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), norm="heads")
        return pre_norm(config, index, attention, behind=True)
