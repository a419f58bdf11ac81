"""Root-mean-square normalisation with a learned scale."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.params import Param, Rows

ONES = "ones."  # prefix of tables of ones, by their length: the weights of norms without one


def ones_table(width: int) -> dict[str, np.ndarray]:
    """Return the table of ones that norms of this width without a weight read, by its name among the weights."""
    return {f"{ONES}{width}": np.ones(width, np.float32)}


class RMSNorm:
    """Rows divided by their root mean square, times a weight; or each head of the rows, if it is `width` wide."""

    def __init__(self, name: str, width: int, eps: float) -> None:
        self.name, self.width, self.eps = name, width, eps

    def params(self) -> list[Param]:
        return [Param(f"{self.name}.weight", (self.width,))]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        return ops.rms_norm(x, weights[f"{self.name}.weight"], eps=self.eps)


class HeadRMSNorm(RMSNorm):
    """The RMS norm of each head with its own weight; `unit` heads are cut together."""

    def __init__(self, name: str, heads: int, head_dim: int, eps: float, unit: int = 1) -> None:
        super().__init__(name, head_dim, eps)
        self.heads, self.unit = heads, unit

    def params(self) -> list[Param]:
        return [Param(f"{self.name}.weight", (self.heads, self.width), Rows(self.unit, self.unit), plain=True)]


class BareRMSNorm(RMSNorm):
    """The RMS norm without a weight; the model's tables have ONES."""

    def params(self) -> list[Param]:
        return []

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, heads * width]
        return ops.rms_norm(x, weights[f"{ONES}{self.width}"], eps=self.eps)
