"""Gemma 4, its text model: wider heads without a window, layers that share keys and values, and per-layer
embeddings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import (
    GatedMLP,
    PerLayerInput,
    PerLayerInputLayer,
    PerLayerInputs,
    RMSNorm,
    SharedKVAttention,
    SharedKVLayer,
)
from sporelm.models.blocks.parallel_mixture import ParallelMixture
from sporelm.models.blocks.per_layer_inputs import run_per_layer_inputs
from sporelm.models.blocks.rms_norm import ones_table
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param
from sporelm.models.position_tables import position_tables

NORMS = ("attn", "attn_post", "ffn", "ffn_post")
Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True, kw_only=True)
class Gemma4Config(ModelConfig):
    """The heads of the configuration are those of layers without a window.

    local_head_dim         head_dim of layers with a window
    local_kv_heads         kv_heads of layers with a window
    per_layer_input_size   width of the row that a token has for each layer; 0: there are none
    num_kv_shared_layers   layers at the end that read the keys and values of the last layer of their type before them
    has_tied_values        values are keys in layers without a window
    has_double_wide_mlp    feed-forward blocks of the layers at the end are twice as wide
    """

    local_head_dim: int
    local_kv_heads: int = 0
    per_layer_input_size: int
    num_kv_shared_layers: int = 0
    has_tied_values: bool = False
    has_double_wide_mlp: bool = False

    def is_kv_shared(self, layer: int) -> bool:
        """Return whether a layer reads the keys and values of another."""
        return layer >= self.layers - self.num_kv_shared_layers

    def for_layer(self, layer: int) -> Self:
        """Return the configuration with the heads and the feed-forward width of one layer."""
        ffn = self.ffn * (2 if self.has_double_wide_mlp and self.is_kv_shared(layer) else 1)
        if self.window_of(layer) is None:
            return replace(self, ffn=ffn)
        head_dim = self.local_head_dim
        return replace(self, ffn=ffn, head_dim=head_dim, kv_heads=self.local_kv_heads, rotary=head_dim)


class SharedKVDecoder(Decoder[Config]):
    """A decoder with last layers that read keys and values of earlier ones, and with per-layer embeddings in some
    models."""

    layers: Sequence[SharedKVLayer]
    inputs: PerLayerInputs | None

    def params(self) -> list[Param]:
        return [*super().params(), *(self.inputs.params() if self.inputs else [])]

    def memory_by_layer(self) -> list[tuple[int, Any]]:
        return [(index, layer.memory()) for index, layer in enumerate(self.layers) if not layer.attention.is_kv_shared]

    def spread(self, x: Any, weights: Mapping[str, Any]) -> Any:
        """Return the input of the first layer, from embeddings x [tokens, width]."""
        return x

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        rows = self.inputs(x, step, weights) if self.inputs else [None] * len(self.layers)
        windowed = [self.config.window_of(index) is not None for index in range(len(self.layers))]
        return run_per_layer_inputs(self.layers, windowed, self.spread(x, weights), rows, step, weights, caches)


@architecture("gemma4", Gemma4Config)
class Gemma4(SharedKVDecoder[Gemma4Config]):
    """Gemma 3's layer with normed values and a row of its own; the result is multiplied by a learned number (Google
    2026)."""

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__(config)
        size = config.per_layer_input_size
        self.inputs = PerLayerInputs(config, size) if size else None

    def layer(self, config: Gemma4Config, index: int) -> SharedKVLayer:
        name, size = f"layers.{index}", config.per_layer_input_size
        config = config.for_layer(index)
        window = config.window_of(index)
        attention = SharedKVAttention(
            name,
            config,
            window,
            is_kv_shared=config.is_kv_shared(index),
            has_tied_values=config.has_tied_values and window is None,
        )
        norms = [RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in NORMS]
        row = PerLayerInput(name, config, size) if size else None
        mlp = GatedMLP(name, config, "gelu_tanh")
        if config.experts is None:
            return PerLayerInputLayer(name, row, norms, attention, mlp)
        mixture = ParallelMixture(name, config, mlp)
        return PerLayerInputLayer(name, row, [*norms[:2], None, norms[3]], attention, mixture)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        config = self.config
        ones = ones_table(config.head_dim) | ones_table(config.local_head_dim)
        rows = self.inputs.tables() if self.inputs else {}
        return position_tables(config, context, config.local_head_dim) | ones | rows
