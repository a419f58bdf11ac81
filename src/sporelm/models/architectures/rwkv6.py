"""RWKV-6 "Finch": linear attention with decays that each token computes, and a gated feed-forward block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import GatedChannelMix, LayerNorm, RwkvLayer, TimeMix6
from sporelm.models.blocks.token_shift import shift_table
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Config, Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@dataclass(frozen=True, kw_only=True)
class Rwkv6Config(ModelConfig):
    """Fields of time mixes.

    token_shift_lora_rank   of the low-rank products that mix a row with the previous one
    decay_lora_rank         of the low-rank product that computes decays
    group_norm_eps          of the norm of heads; None: there is no such norm
    rescale_every           rows are halved after this many layers, and weights are stored for it; 0: never
    """

    token_shift_lora_rank: int = 0
    decay_lora_rank: int = 0
    group_norm_eps: float | None = None
    rescale_every: int = 0


class RwkvDecoder(Decoder[Config]):
    """A decoder with normed embeddings, and blocks that read the previous row of each."""

    norms = LayerNorm
    layers: Sequence[RwkvLayer]

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embedding_norm = LayerNorm("embedding_norm", config.width, config.eps)

    def params(self) -> list[Param]:
        return [*super().params(), *self.embedding_norm.params()]

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | shift_table(self.config.width)

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return self.embedding_norm(super().embedded(step, weights), weights)


@architecture("rwkv6", Rwkv6Config)
class Rwkv6(RwkvDecoder[Rwkv6Config]):
    """x + time(norm(x)), then x + channel(norm(x)), of normed embeddings (Peng et al. 2024)."""

    def layer(self, config: Rwkv6Config, index: int) -> RwkvLayer:
        assert config.group_norm_eps is not None
        name, every = f"layers.{index}", config.rescale_every
        ranks = config.token_shift_lora_rank, config.decay_lora_rank
        return RwkvLayer(
            LayerNorm(f"{name}.attn_norm", config.width, config.eps),
            TimeMix6(name, config, *ranks, eps=config.group_norm_eps),
            LayerNorm(f"{name}.ffn_norm", config.width, config.eps),
            GatedChannelMix(name, config),
            scale=0.5 if every and (index + 1) % every == 0 else 1.0,
        )
