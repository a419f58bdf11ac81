"""K-EXAONE: EXAONE 4's windows and norms of heads, norms in front, and a mixture of experts."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.exaone4 import is_rotated
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("exaone_moe")
class ExaoneMoe(Decoder):
    """The Llama layer with a mixture; layers with full attention are not rotated (LG AI Research 2026)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        window = config.window_of(index)
        rotates = is_rotated(config, index)
        return pre_norm(config, index, Attention(f"layers.{index}", config, window, norm="heads", rotates=rotates))
