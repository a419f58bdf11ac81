"""Per-layer embeddings: a small row of each token for each layer (Gemma 3n and 4)."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.blocks.embedding import Embedding
from sporelm.models.blocks.layer import Layer, RowBlock
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.blocks.shared_kv_attention import SharedKVAttention
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

COLUMNS = "layer_input_columns."  # prefix of the tables with the columns of each layer


class PerLayerInputs:
    """The rows of the layers, `size` numbers each: the token's row in a table of their own and a projection of the
    first layer's input, added and scaled. `vocab`: tokens in that table, if not all."""

    def __init__(self, config: ModelConfig, size: int, vocab: int = 0) -> None:
        self.size, self.layers, self.width = size, config.layers, config.width
        few = 0 < vocab < config.vocab
        self.embedding = Embedding("layer_embedding", vocab or config.vocab, size * config.layers, fills=few)
        self.projection = Linear("layer_projection", size * config.layers, config.width)
        self.norm = RMSNorm("layer_projection_norm", size, config.eps)

    def params(self) -> list[Param]:
        return [*self.embedding.params(), *self.projection.params(), *self.norm.params()]

    def tables(self) -> dict[str, np.ndarray]:
        """Return the columns of each layer: int32 [size]."""
        columns = np.arange(self.layers * self.size, dtype=np.int32).reshape(self.layers, self.size)
        return {f"{COLUMNS}{index}": each for index, each in enumerate(columns)}

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any]) -> list[Any]:  # x [tokens, width]
        """Return the rows of each layer: float32 [tokens, size]."""
        own = ops.scale(self.embedding(step.tokens, weights), factor=self.size**0.5)
        made = self.norm(ops.scale(self.projection(x, weights), factor=self.width**-0.5), weights)
        both = ops.scale(ops.add(made, own), factor=0.5**0.5)
        return [ops.select_columns(both, weights[f"{COLUMNS}{index}"]) for index in range(self.layers)]


class PerLayerInput:
    """x + norm(up(gelu(gate(x)) * the layer's row))."""

    def __init__(self, name: str, config: ModelConfig, size: int) -> None:
        self.gate = Linear(f"{name}.input_gate", size, config.width)
        self.up = Linear(f"{name}.input_up", config.width, size)
        self.norm = RMSNorm(f"{name}.input_norm", config.width, config.eps)

    def params(self) -> list[Param]:
        return [*self.gate.params(), *self.up.params(), *self.norm.params()]

    def __call__(self, x: Any, row: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width], row [tokens, size]
        return ops.add(x, self.compute(x, row, weights))

    def compute(self, x: Any, row: Any, weights: Mapping[str, Any]) -> Any:
        """Return the term that is added to x: float32 [tokens, width]."""
        gated = ops.activate_mul(self.gate(x, weights), row, kind="gelu_tanh")
        return self.norm(self.up(gated, weights), weights)


class SharedKVLayer(Layer):
    """A layer that may read the keys and values of another one, and whose own row is applied after its blocks."""

    attention: SharedKVAttention

    @abstractmethod
    def apply_row(self, x: Any, row: Any, weights: Mapping[str, Any]) -> Any:
        """Return x, the layer's output, after its own row [tokens, size] is applied; the row may be None."""


class PerLayerInputLayer(SharedKVLayer):
    """x + norm(attention(norm(x))), x + norm(mlp(norm(x))), then the layer's row, if it has one; the sum is multiplied
    by a learned number."""

    def __init__(
        self,
        name: str,
        row: PerLayerInput | None,
        norms: Sequence[RowBlock | None],
        attention: SharedKVAttention,
        mlp: RowBlock,
    ) -> None:
        """norms: before and after attention, then before and after the feed-forward block."""
        super().__init__(norms[0], attention, norms[2], mlp, after_attention=norms[1], after_mlp=norms[3])
        self.row, self.factor = row, Param(f"{name}.out_scale.weight", (1,))

    def params(self) -> list[Param]:
        return [*super().params(), *(self.row.params() if self.row else []), self.factor]

    def apply_row(self, x: Any, row: Any, weights: Mapping[str, Any]) -> Any:
        x = self.row(x, row, weights) if self.row else x
        return ops.scale_by(x, weights[self.factor.name])


def run_per_layer_inputs(
    layers: Sequence[SharedKVLayer],
    local: Sequence[bool],
    x: Any,
    rows: Sequence[Any],
    step: StepInputs,
    weights: Mapping[str, Any],
    caches: Sequence[Any],
) -> Any:
    """Return x after all layers. A layer without keys and values reads those of the last layer of its type before it.

    rows    the row of each layer
    local   whether each layer is of the type with a window
    """
    own, last = iter(caches), dict[bool, Any]()
    for layer, kind, row in zip(layers, local, rows, strict=True):
        last[kind] = last[kind] if layer.attention.is_kv_shared else next(own)
        x = layer.apply_row(layer(x, step, weights, last[kind]), row, weights)
    return x
