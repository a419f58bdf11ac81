"""Llama 4: chunked attention, layers with full attention and no rotary positions, one expert per token and a shared
one."""

from dataclasses import dataclass

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, PreWeightedMixture, pre_norm
from sporelm.models.blocks.rms_norm import ones_table
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder

QUERY_FACTORS = "query_growth"  # the table of the factors of queries that are not rotated


@dataclass(frozen=True, kw_only=True)
class Llama4Config(ModelConfig):
    """Queries that are not rotated are multiplied by 1 + temperature_scale * log(1 + (position + 1) //
    temperature_floor).

    has_qk_norm   rotated queries and keys are normed
    """

    has_qk_norm: bool = True
    temperature_floor: int = 8192
    temperature_scale: float = 0.1


@architecture("llama4", Llama4Config)
class Llama4(Decoder[Llama4Config]):
    """The Llama layer with these blocks (Meta 2025); the temperature of queries is Nakanishi's (2025)."""

    def layer(self, config: Llama4Config, index: int) -> Layer:
        name = f"layers.{index}"
        is_rotated = index not in config.nope_layers
        is_normed = is_rotated and config.has_qk_norm
        attention = Attention(
            name,
            config,
            config.window_of(index),
            rotates=is_rotated,
            chunked=True,
            norm="bare" if is_normed else "",
            norms_last=is_normed,
            query_table=QUERY_FACTORS if not is_rotated and config.temperature_scale else "",
        )
        has_experts = config.experts is not None and config.experts.at(index)
        return pre_norm(config, index, attention, PreWeightedMixture(name, config) if has_experts else None)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Return the tables with the factors of queries, stored as a rotary table with zero sines."""
        config = self.config
        tables = super().tables(context) | ones_table(config.head_dim)
        if config.temperature_scale and config.nope_layers:
            runs = (np.arange(context) + 1) // config.temperature_floor
            table = np.zeros((context, config.head_dim), np.float32)
            table[:, : config.head_dim // 2] = (1 + config.temperature_scale * np.log1p(runs))[:, None]
            tables[QUERY_FACTORS] = table
        return tables
