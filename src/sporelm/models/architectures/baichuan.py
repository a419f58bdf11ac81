"""Baichuan 1 and 2: Llama; the 13B has linear biases in place of rotary positions."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class BaichuanConfig(ModelConfig):
    """has_normalized_head: the rows of the output are normalized to length one (Baichuan 2)."""

    has_normalized_head: bool = False


@architecture("baichuan", BaichuanConfig)
class Baichuan(Decoder[BaichuanConfig]):
    """The Llama layer (Yang et al. 2023)."""

    def layer(self, config: BaichuanConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, rotates=not config.alibi))
