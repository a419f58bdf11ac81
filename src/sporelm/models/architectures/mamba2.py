"""Mamba 2: layers of state spaces and nothing else."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, Mamba2Mixer, Mamba2Shape, RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(ModelConfig):
    """mamba: the sizes of the mixers."""

    mamba: Mamba2Shape


@architecture("mamba2", Mamba2Config)
class Mamba2(Decoder[Mamba2Config]):
    """x + mixer(norm(x))."""

    def layer(self, config: Mamba2Config, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(RMSNorm(f"{name}.attn_norm", config.width, config.eps), Mamba2Mixer(name, config, config.mamba))
