"""Gemma 3n, its text model: AltUp streams, layers that share keys and values, and per-layer embeddings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.gemma4 import NORMS, SharedKVDecoder
from sporelm.models.blocks import (
    AltUpLayer,
    AltUpStreams,
    GatedMLP,
    Laurel,
    PerLayerInput,
    PerLayerInputs,
    RMSNorm,
    SharedKVAttention,
)
from sporelm.models.blocks.rms_norm import ones_table
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param
from sporelm.models.position_tables import position_tables


@dataclass(frozen=True, kw_only=True)
class Gemma3nConfig(ModelConfig):
    """The fields of Gemma 3n.

    per_layer_input_size    width of the row that a token has for each layer
    per_layer_vocab         tokens that have such rows; the others have the first one's
    altup_num_inputs        streams of a row (AltUp)
    num_kv_shared_layers    layers at the end that read the keys and values of the last layer of their type before them
    laurel_rank             rank of the learned residual (LAuReL)
    activation_thresholds   of each layer: standard deviations over the mean above which a value of the gate counts;
                            -inf: all values count
    """

    per_layer_input_size: int
    per_layer_vocab: int = 0
    altup_num_inputs: int = 4
    num_kv_shared_layers: int = 0
    laurel_rank: int = 64
    activation_thresholds: tuple[float, ...] = ()

    def activation_threshold(self, layer: int) -> float | None:
        """Return the threshold of a layer; None if all values count."""
        threshold = self.activation_thresholds[layer]
        return threshold if threshold > -inf else None


@architecture("gemma3n", Gemma3nConfig)
class Gemma3n(SharedKVDecoder[Gemma3nConfig]):
    """Layers that compute the first of several streams and correct the others (Google 2025)."""

    inputs: PerLayerInputs

    def __init__(self, config: Gemma3nConfig) -> None:
        super().__init__(config)
        self.inputs = PerLayerInputs(config, config.per_layer_input_size, config.per_layer_vocab)
        self.streams = AltUpStreams(config, config.altup_num_inputs)

    def layer(self, config: Gemma3nConfig, index: int) -> AltUpLayer:
        name = f"layers.{index}"
        is_kv_shared = index >= config.layers - config.num_kv_shared_layers
        return AltUpLayer(
            name,
            config,
            config.altup_num_inputs,
            Laurel(name, config, config.laurel_rank),
            PerLayerInput(name, config, config.per_layer_input_size),
            [RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in NORMS],
            SharedKVAttention(name, config, config.window_of(index), is_kv_shared=is_kv_shared),
            GatedMLP(name, config, "gelu_tanh", above=config.activation_threshold(index)),
        )

    def params(self) -> list[Param]:
        return [*super().params(), *self.streams.params()]

    def tables(self, context: int) -> dict[str, np.ndarray]:
        ones = ones_table(self.config.head_dim)
        return position_tables(self.config, context) | ones | self.inputs.tables()

    def spread(self, x: Any, weights: Mapping[str, Any]) -> Any:
        return self.streams(x, weights)

    def hidden(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        x = self.through(self.embedded(step, weights), step, weights, caches)
        return self.norm(self.streams.merge(x, step.rows, weights), weights)
