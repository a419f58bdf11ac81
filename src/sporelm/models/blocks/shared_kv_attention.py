"""Attention over what its own layer keeps, or what another one lends it (Gemma 4)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.linear import apply_linears
from sporelm.models.blocks.rms_norm import ONES
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class SharedKVAttention(Attention):
    """Attention whose queries, keys and values are normed head by head.

    borrows   it has no keys and values, and reads a cache that another layer writes
    tied      its values are its keys, before they are normed and rotated
    """

    def __init__(
        self, name: str, config: ModelConfig, window: int | None, *, borrows: bool = False, tied: bool = False
    ) -> None:
        super().__init__(name, config, window, norm="heads")
        self.borrows, self.tied = borrows, tied

    def params(self) -> list[Param]:
        if self.borrows:
            return [*self.q.params(), *self.o.params(), *self.norms[0].params()]
        values = {} if not self.tied else {param.name for param in self.v.params()}
        return [param for param in super().params() if param.name not in values]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        if self.borrows:
            (q,) = apply_linears(x, weights, self.q)
        else:
            q, k, *v = apply_linears(x, weights, self.q, self.k, *(() if self.tied else (self.v,)))
            ones = weights[f"{ONES}{self.memory.head_dim}"]
            value = ops.rms_norm(v[0] if v else k, ones, eps=self.norms[1].eps)
            ops.store_kv(self._turned(self.norms[1](k, weights), step, weights), value, cache, step.slots)
        q = self._turned(self.norms[0](q, weights), step, weights)
        mixed = ops.attention(q, cache, step.starts, step.lengths, step.pages, **self._options())
        return self.o(mixed, weights)

    def _turned(self, x: Any, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return ops.rope(x, step.positions, weights[self.table], head_dim=self.memory.head_dim, style=self.style)
