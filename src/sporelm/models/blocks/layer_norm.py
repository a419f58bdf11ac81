"""Normalisation by mean and deviation, with a learned scale and a bias."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.weights.names import Param


class LayerNorm:
    """Rows less their mean, divided by their deviation, times a weight (which OLMo's lack), plus a bias (Cohere's)."""

    def __init__(self, name: str, width: int, eps: float, *, weight: bool = True, bias: bool = True) -> None:
        self.name, self.width, self.eps = name, width, eps
        self.kinds = ["weight"] * weight + ["bias"] * (weight and bias)

    def params(self) -> list[Param]:
        return [Param(f"{self.name}.{kind}", (self.width,)) for kind in self.kinds]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        vectors = [weights[param.name] for param in self.params()]
        return ops.layer_norm(x, *vectors, eps=self.eps)
