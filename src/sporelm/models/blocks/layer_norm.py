"""Normalisation by mean and deviation, with a learned scale and a bias."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.weights.names import Param


class LayerNorm:
    """Rows less their mean, divided by their deviation, times a weight, plus a bias (which Cohere's lack)."""

    def __init__(self, name: str, width: int, eps: float, *, bias: bool = True) -> None:
        self.name, self.width, self.eps, self.bias = name, width, eps, bias

    def params(self) -> list[Param]:
        weight = Param(f"{self.name}.weight", (self.width,))
        return [weight, Param(f"{self.name}.bias", (self.width,))] if self.bias else [weight]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        vectors = [weights[param.name] for param in self.params()]
        return ops.layer_norm(x, *vectors, eps=self.eps)
