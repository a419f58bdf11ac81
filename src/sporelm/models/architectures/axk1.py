"""A.X K1: DeepSeek V3's layer, with a norm on the mixture's output."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import LatentAttention, Layer, RMSNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.latent_config import LatentConfig


@architecture("axk1", LatentConfig)
class AXK1(Decoder[LatentConfig]):
    """Latent attention, then a mixture that is normed, or, in the first layers, a dense block (SK Telecom 2026)."""

    def layer(self, config: LatentConfig, index: int) -> Layer:
        name = f"layers.{index}"
        layer = pre_norm(config, index, LatentAttention(name, config, config.latent))
        if config.experts is not None and config.experts.at(index):
            layer.after_mlp = RMSNorm(f"{name}.ffn_post_norm", config.width, config.eps)
        return layer
