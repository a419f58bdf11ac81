"""A linear layer with a norm of its input (BitNet, Ma et al. 2024)."""

from collections.abc import Mapping
from typing import Any

from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.params import Param


class NormedLinear(Linear):
    """linear(norm(x)), in place of a block's last product."""

    def __init__(self, linear: Linear, norm: str, eps: float) -> None:
        super().__init__(linear.name, linear.out, linear.width, bias=linear.bias, split=linear.split)
        self.norm = RMSNorm(norm, linear.width, eps)

    def params(self) -> list[Param]:
        return [*self.norm.params(), *super().params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width] -> [tokens, out]
        return super().__call__(self.norm(x, weights), weights)
