"""StableLM 3B, Zephyr, StableLM 2: Llama with layer norms; the 12B has its blocks side by side."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class StableLMConfig(ModelConfig):
    """has_head_norms: there is a norm for each head of queries and keys. has_ffn_norm: there is a norm before the
    feed-forward block."""

    has_head_norms: bool
    has_ffn_norm: bool = False


@architecture("stablelm", StableLMConfig)
class StableLM(Decoder[StableLMConfig]):
    """The Llama layer with layer norms, or its blocks side by side (Bellagente et al. 2024)."""

    norms = LayerNorm

    def layer(self, config: StableLMConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, norm="each" if config.has_head_norms else "")
        return pre_norm(config, index, attention, norm=self.norms, shared=True)
