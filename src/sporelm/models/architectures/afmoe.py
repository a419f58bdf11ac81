"""Trinity: gated attention, norms on both sides, a mixture; layers without a window have no rotary positions."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("afmoe")
class Afmoe(Decoder):
    """The Llama layer with gated attention and norms after its blocks (Arcee AI 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        rotates = index not in config.full_layers
        window = config.window_of(index)
        attention = Attention(f"layers.{index}", config, window, norm="heads", rotates=rotates, gated=True)
        return pre_norm(config, index, attention, behind=True)
