"""EXAONE 4: norms after each block and of each head; layers with full attention have no rotary positions."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, GatedMLP, Layer, RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


def is_rotated(config: ModelConfig, layer: int) -> bool:
    """Return whether a layer has rotary positions: all do if no layer has a window, otherwise only layers with a
    window."""
    return config.window is None or config.window_of(layer) is not None


@architecture("exaone4")
class Exaone4(Decoder):
    """x + norm(attention(x)), then x + norm(mlp(x)) (LG AI Research 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        rotates = is_rotated(config, index)
        return Layer(
            None,
            Attention(name, config, config.window_of(index), norm="heads", rotates=rotates),
            None,
            GatedMLP(name, config),
            after_attention=RMSNorm(f"{name}.attn_post_norm", config.width, config.eps),
            after_mlp=RMSNorm(f"{name}.ffn_post_norm", config.width, config.eps),
        )
