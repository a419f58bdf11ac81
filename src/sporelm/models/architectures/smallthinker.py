"""SmallThinker: ReLU experts that are selected before attention; layers without a window have no rotary positions."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, RMSNorm
from sporelm.models.blocks.pre_routed_mixture import PreRoutedLayer, PreRoutedMixture
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("smallthinker")
class SmallThinker(Decoder):
    """Attention and experts (Song et al. 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        rotates = index not in config.nope_layers
        return PreRoutedLayer(
            RMSNorm(f"{name}.attn_norm", config.width, config.eps),
            Attention(name, config, config.window_of(index), rotates=rotates),
            RMSNorm(f"{name}.ffn_norm", config.width, config.eps),
            PreRoutedMixture(name, config),
        )
