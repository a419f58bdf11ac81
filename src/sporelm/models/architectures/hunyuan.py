"""Hunyuan, Maincoder: queries and keys are normed head by head after they are rotated."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("hunyuan")
class Hunyuan(Decoder):
    """The Llama layer with norms of heads after the rotation (Tencent Hunyuan team 2025, Maincode 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="heads", norms_last=True))
