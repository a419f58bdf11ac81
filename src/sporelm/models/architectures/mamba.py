"""Mamba 1 and Falcon-Mamba: layers of selective state spaces and nothing else."""

from dataclasses import dataclass

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, MambaMixer, MambaShape, RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class MambaConfig(ModelConfig):
    """mamba: the sizes of the mixers."""

    mamba: MambaShape


@architecture("mamba", MambaConfig)
class Mamba(Decoder[MambaConfig]):
    """x + mixer(norm(x))."""

    def layer(self, config: MambaConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(RMSNorm(f"{name}.attn_norm", config.width, config.eps), MambaMixer(name, config, config.mamba))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | self.config.mamba.tables()
