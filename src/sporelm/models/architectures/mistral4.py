"""Mistral Small 4 (text): latent attention with queries scaled by position, and experts in every layer."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.mistral3 import query_factors
from sporelm.models.blocks import LatentAttention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.latent_config import LatentConfig

QUERY_FACTORS: Final = "query_growth"  # the table of factors of queries at each position


@dataclass(frozen=True, kw_only=True)
class Mistral4Config(LatentConfig):
    """temperature_scale: as in Mistral 3."""

    temperature_scale: float = 0.0


@architecture("mistral4", Mistral4Config)
class Mistral4(Decoder[Mistral4Config]):
    """DeepSeek V2's layer (Mistral AI 2026)."""

    def layer(self, config: Mistral4Config, index: int) -> Layer:
        growth = QUERY_FACTORS if config.temperature_scale else ""
        return pre_norm(config, index, LatentAttention(f"layers.{index}", config, config.latent, growth=growth))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Return the tables with the factors of queries."""
        tables = super().tables(context)
        factors = query_factors(self.config.temperature_scale, self.config.rope_scaling, context)
        if factors is not None:
            tables[QUERY_FACTORS] = factors.astype(np.float32)
        return tables
