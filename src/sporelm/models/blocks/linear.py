"""A product with a weight matrix, with or without a bias."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.weights.names import Columns, Param, Rows


class Linear:
    """x @ weight.T (+ bias)."""

    def __init__(
        self, name: str, out: int, width: int, *, bias: bool = False, split: Rows | Columns | None = None
    ) -> None:
        self.name, self.out, self.width, self.bias, self.split = name, out, width, bias, split

    def params(self) -> list[Param]:
        weight = Param(f"{self.name}.weight", (self.out, self.width), self.split)
        if not self.bias:
            return [weight]
        # Summed partial products take the bias once, so only a cut by rows cuts it.
        return [weight, Param(f"{self.name}.bias", (self.out,), self.split if isinstance(self.split, Rows) else None)]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width] -> [tokens, out]
        if self.bias:
            return ops.linear(x, weights[f"{self.name}.weight"], weights[f"{self.name}.bias"])
        return ops.linear(x, weights[f"{self.name}.weight"])
