"""DeepSeek V2 and V3, R1, Kimi K2, GLM-4.7-Flash, Youtu-LLM: latent attention, and mixtures of experts after dense
layers, or dense layers alone."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import LatentAttention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.latent_config import LatentConfig


@architecture("deepseek2", LatentConfig)
class Deepseek2(Decoder[LatentConfig]):
    """Latent attention, then a mixture or, in the first layers, a dense block (DeepSeek-AI 2024)."""

    def layer(self, config: LatentConfig, index: int) -> Layer:
        return pre_norm(config, index, LatentAttention(f"layers.{index}", config, config.latent))
