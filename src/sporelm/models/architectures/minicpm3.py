"""MiniCPM3: latent attention in MiniCPM's layer."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import LatentAttention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.latent_config import LatentConfig


@architecture("minicpm3", LatentConfig)
class MiniCPM3(Decoder[LatentConfig]):
    """Latent attention; the outputs of blocks, the embedding and the last rows are scaled (Hu et al. 2024)."""

    def layer(self, config: LatentConfig, index: int) -> Layer:
        return pre_norm(config, index, LatentAttention(f"layers.{index}", config, config.latent))
