"""One layer of a decoder: attention and a feed-forward block, with norms before them, after them, or both."""

from collections.abc import Mapping
from typing import Any, Protocol

from sporelm import ops
from sporelm.models.blocks.block_memory import BlockMemory
from sporelm.models.blocks.linear import scale_rows
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class RowBlock(Protocol):
    """A norm, or a feed-forward block: rows in, rows out."""

    def params(self) -> list[Param]: ...

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any: ...


class Mixer(Protocol):
    """Attention or a replacement: mixes each row with the rows before it in its sequence.

    It is called with x [tokens, width], the step, the weights, and a cache for each of its memories.
    """

    @property
    def memory(self) -> BlockMemory: ...

    def params(self) -> list[Param]: ...

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any: ...


class Layer:
    """x + attention(norm(x)), then x + mlp(norm(x)); without `mlp`, only the first.

    after_attention, after_mlp   norms of the outputs of the blocks
    scale                        factor of these outputs
    """

    def __init__(
        self,
        attention_norm: RowBlock | None,
        attention: Mixer,
        mlp_norm: RowBlock | None = None,
        mlp: RowBlock | None = None,
        *,
        after_attention: RowBlock | None = None,
        after_mlp: RowBlock | None = None,
        scale: float = 1.0,
    ) -> None:
        self.attention_norm, self.attention, self.after_attention = attention_norm, attention, after_attention
        self.mlp_norm, self.mlp, self.after_mlp, self.scale = mlp_norm, mlp, after_mlp, scale

    def params(self) -> list[Param]:
        first = (self.attention_norm, self.attention, self.after_attention)
        parts = (*first, self.mlp_norm, self.mlp, self.after_mlp)
        return [param for part in parts if part is not None for param in part.params()]

    def memory(self) -> BlockMemory:
        return self.attention.memory

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        mixed = self.attention(_normed(self.attention_norm, x, weights), step, weights, *caches)
        x = ops.add(x, self._scaled(_normed(self.after_attention, mixed, weights)))
        if self.mlp is None:
            return x
        made = self.mlp(_normed(self.mlp_norm, x, weights), weights)
        return ops.add(x, self._scaled(_normed(self.after_mlp, made, weights)))

    def _scaled(self, x: Any) -> Any:
        return scale_rows(x, self.scale)


class ParallelLayer(Layer):
    """x + attention(norm(x)) + mlp(norm(x)) (GPT-J, Wang, Komatsuzaki 2021); without `mlp_norm`, both share one
    norm."""

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        read = _normed(self.attention_norm, x, weights)
        mixed = _normed(self.after_attention, self.attention(read, step, weights, *caches), weights)
        assert self.mlp is not None
        made = self.mlp(read if self.mlp_norm is None else self.mlp_norm(x, weights), weights)
        # Add the outputs first, so that the sum with x can be fused with the norm that follows.
        return ops.add(x, self._scaled(ops.add(mixed, _normed(self.after_mlp, made, weights))))


def _normed(norm: RowBlock | None, x: Any, weights: Mapping[str, Any]) -> Any:
    return x if norm is None else norm(x, weights)
