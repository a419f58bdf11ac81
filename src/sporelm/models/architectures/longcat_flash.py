"""LongCat-Flash: two blocks of latent attention a layer, and experts beside them; some experts compute nothing."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import GatedMLP, LatentAttention, Layer, RMSNorm
from sporelm.models.blocks.shortcut_layer import ShortcutLayer, ZeroExpertMixture
from sporelm.models.decoder import Decoder
from sporelm.models.latent_config import LatentConfig

HALVES = ("first", "second")


@dataclass(frozen=True, kw_only=True)
class LongcatFlashConfig(LatentConfig):
    """num_zero_experts: experts that return their input."""

    num_zero_experts: int = 0


@architecture("longcat_flash", LongcatFlashConfig)
class LongcatFlash(Decoder[LongcatFlashConfig]):
    """DeepSeek V3's attention twice a layer (Meituan 2025)."""

    def layer(self, config: LongcatFlashConfig, index: int) -> Layer:
        def half(name: str) -> Layer:
            before, between = (RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn"))
            return Layer(before, LatentAttention(name, config, config.latent), between, GatedMLP(name, config))

        first, second = (half(f"layers.{index}.{each}") for each in HALVES)
        return ShortcutLayer(first, second, ZeroExpertMixture(f"layers.{index}", config, config.num_zero_experts))
