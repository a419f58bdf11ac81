"""One layer of a decoder with the norms in front (pre-norm)."""

from collections.abc import Mapping
from typing import Any, Protocol

from sporelm import ops
from sporelm.models.blocks.attention import Attention, Paged
from sporelm.models.inputs import StepInputs
from sporelm.weights.names import Param


class Part(Protocol):
    """A norm, or a feed-forward block: rows in, rows out."""

    def params(self) -> list[Param]: ...

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any: ...


class Layer:
    """x + attention(norm(x)), then x + mlp(norm(x)); what is added is multiplied by `scale`."""

    def __init__(
        self, attention_norm: Part, attention: Attention, mlp_norm: Part, mlp: Part, *, scale: float = 1.0
    ) -> None:
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp, self.scale = mlp_norm, mlp, scale

    def params(self) -> list[Param]:
        return [*self.attention_norm.params(), *self.attention.params(), *self.mlp_norm.params(), *self.mlp.params()]

    def memory(self) -> Paged:
        return self.attention.memory

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        mixed = self.attention(self.attention_norm(x, weights), step, weights, cache)
        x = ops.add(x, self._scaled(mixed))
        return ops.add(x, self._scaled(self.mlp(self.mlp_norm(x, weights), weights)))

    def _scaled(self, x: Any) -> Any:
        return x if self.scale == 1 else ops.scale(x, factor=self.scale)
