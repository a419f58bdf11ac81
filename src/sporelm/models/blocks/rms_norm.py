"""Root-mean-square normalisation with a learned scale."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.weights.names import Param


class RMSNorm:
    """Rows, or each head of them where that is `width` wide, divided by their root mean square, times a weight."""

    def __init__(self, name: str, width: int, eps: float) -> None:
        self.name, self.width, self.eps = name, width, eps

    def params(self) -> list[Param]:
        return [Param(f"{self.name}.weight", (self.width,))]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        return ops.rms_norm(x, weights[f"{self.name}.weight"], eps=self.eps)
