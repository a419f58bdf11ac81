"""Layer norms: of rows, and of heads."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.params import Param, Rows


class LayerNorm:
    """Rows minus their mean, divided by their standard deviation, times a weight, plus a bias. OLMo has neither weight
    nor bias, Cohere no bias."""

    def __init__(self, name: str, width: int, eps: float, *, weight: bool = True, bias: bool = True) -> None:
        self.name, self.width, self.eps = name, width, eps
        self.kinds = ["weight"] * weight + ["bias"] * (weight and bias)

    def params(self) -> list[Param]:
        return [Param(f"{self.name}.{kind}", (self.width,)) for kind in self.kinds]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        vectors = [weights[param.name] for param in self.params()]
        return ops.layer_norm(x, *vectors, eps=self.eps)


def layer_norm_without_bias(name: str, width: int, eps: float) -> LayerNorm:
    """Return a layer norm with a weight and no bias."""
    return LayerNorm(name, width, eps, bias=False)


def layer_norm_without_weights(name: str, width: int, eps: float) -> LayerNorm:
    """Return a layer norm without weight and bias."""
    return LayerNorm(name, width, eps, weight=False)


class HeadLayerNorm:
    """The layer norm of each head, with its own weight and no bias; `unit` heads are cut together."""

    def __init__(self, name: str, heads: int, head_dim: int, eps: float, unit: int = 1) -> None:
        self.eps, self.weight = eps, Param(f"{name}.weight", (heads, head_dim), Rows(unit, unit), plain=True)

    def params(self) -> list[Param]:
        return [self.weight]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, heads * head_dim]
        return ops.layer_norm(x, weights[self.weight.name], eps=self.eps)


class SharedHeadLayerNorm(HeadLayerNorm):
    """The layer norm of each head, with one weight and one bias for all heads."""

    def __init__(self, name: str, head_dim: int, eps: float) -> None:
        self.eps, self.head_dim = eps, head_dim
        self.vectors = [Param(f"{name}.{kind}", (head_dim,)) for kind in ("weight", "bias")]

    def params(self) -> list[Param]:
        return self.vectors

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, heads * head_dim]
        vectors = [weights[param.name] for param in self.vectors]
        return ops.group_norm(x, *vectors, group=self.head_dim, eps=self.eps)
