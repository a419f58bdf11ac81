"""Ministral 3 and Mistral Small 3.1: Llama with queries that may be scaled by position (Llama 4's temperature)."""

from dataclasses import dataclass

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import ROPE
from sporelm.models.rope_scaling import RopeScaling, YarnScaling

QUERY_ROPE = "rope_queries"  # the rotary table of queries


@dataclass(frozen=True, kw_only=True)
class Mistral3Config(ModelConfig):
    """temperature_scale: queries are multiplied by 1 + temperature_scale * log(1 + position // YaRN's original
    context); 0: they are not."""

    temperature_scale: float = 0.0


def query_factors(temperature_scale: float, scaling: RopeScaling, context: int) -> np.ndarray | None:
    """Return the factor of queries at each position: float64 [context, 1]; None if there is none."""
    if not temperature_scale or not isinstance(scaling, YarnScaling):
        return None
    return np.asarray(1 + temperature_scale * np.log1p(np.arange(context) // scaling.original))[:, None]


@architecture("mistral3", Mistral3Config)
class Mistral3(Decoder[Mistral3Config]):
    """The Llama layer (Mistral AI 2025)."""

    def layer(self, config: Mistral3Config, index: int) -> Layer:
        table = QUERY_ROPE if config.temperature_scale else ""
        return pre_norm(config, index, Attention(f"layers.{index}", config, query_table=table))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Return the tables with a rotary table of queries that contains their factors."""
        tables = super().tables(context)
        factors = query_factors(self.config.temperature_scale, self.config.rope_scaling, context)
        if factors is not None:
            tables[QUERY_ROPE] = (tables[ROPE] * factors).astype(np.float32)
        return tables
