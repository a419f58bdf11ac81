"""Attention over keys and values of its own layer, or over those of another layer (Gemma 4)."""

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
    """Attention with norms of each head of queries, keys and values.

    is_kv_shared      it has no keys and values, and reads a cache that another layer writes
    has_tied_values   values are the keys before their norm and rotation
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        window: int | None,
        *,
        is_kv_shared: bool = False,
        has_tied_values: bool = False,
    ) -> None:
        super().__init__(name, config, window, norm="heads")
        self.is_kv_shared = is_kv_shared
        self.has_tied_values = has_tied_values

    def params(self) -> list[Param]:
        if self.is_kv_shared:
            return [*self.q.params(), *self.o.params(), *self.norms[0].params()]
        values = {} if not self.has_tied_values else {param.name for param in self.v.params()}
        return [param for param in super().params() if param.name not in values]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        if self.is_kv_shared:
            (q,) = apply_linears(x, weights, self.q)
        else:
            q, k, *v = apply_linears(x, weights, self.q, self.k, *(() if self.has_tied_values else (self.v,)))
            ones = weights[f"{ONES}{self.memory.head_dim}"]
            value = ops.rms_norm(v[0] if v else k, ones, eps=self.norms[1].eps)
            ops.store_kv(self._rotate(self.norms[1](k, weights), step, weights), value, cache, step.slots)
        q = self._rotate(self.norms[0](q, weights), step, weights)
        mixed = ops.attention(q, cache, step.starts, step.lengths, step.pages, **self._options())
        return self.o(mixed, weights)

    def _rotate(self, x: Any, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return ops.rope(x, step.positions, weights[self.table], head_dim=self.memory.head_dim, style=self.style)
