"""Linear layers, with or without a bias, and the LoRA adapters of a step."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.inputs import ADAPTERS
from sporelm.models.params import Columns, Param, Rows, adapters_name, order_name


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
        (result,) = apply_linears(x, weights, self)
        return result

    def of_ordered(self, x: Any, weights: Mapping[str, Any]) -> Any:
        """Return the product with x, whose columns are already in the weight's order."""
        if self.bias:
            return ops.linear(x, weights[f"{self.name}.weight"], weights[f"{self.name}.bias"])
        return ops.linear(x, weights[f"{self.name}.weight"])


def apply_linears(x: Any, weights: Mapping[str, Any], *linears: Linear) -> list[Any]:  # x [tokens, width]
    """Return each product of x. Weights with the same column order (GPTQ's act-order) share one reordered x.

    In steps with adapters, the rows with an adapter get its product, too; its matrices are among the weights.
    """
    ordered, which = {None: x}, weights.get(ADAPTERS)
    results = []
    for linear in linears:
        order = weights.get(order_name(linear.name))
        if order not in ordered:
            ordered[order] = ops.select_columns(x, order)
        result = linear.of_ordered(ordered[order], weights)
        matrices = weights.get(adapters_name(linear.name)) if which is not None else None
        results.append(ops.add_lora(result, x, which, *matrices) if matrices else result)
    return results


def scale_rows(x: Any, factor: float) -> Any:
    """Return x [tokens, width] times a number; x itself if that is 1."""
    return x if factor == 1 else ops.scale(x, factor=factor)
