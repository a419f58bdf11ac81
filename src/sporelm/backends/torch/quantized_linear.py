"""Matrix multiplications with packed weights, through plain torch."""

from typing import Any

from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.activation import activate_mul
from sporelm.backends.torch.elementwise import silu_mul
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.quantize_rows import RoundedRows, quantize_rows
from sporelm.backends.torch.torch_weight import TorchWeight, multiply_all
from sporelm.ops.quantize_rows import ROW_FORMATS


def activation_values(x: Tensor | RoundedRows, weight: TorchWeight) -> Tensor:
    """Return the numbers of x that a weight multiplies, in its activation type."""
    if isinstance(x, Tensor) and weight.activation in ROW_FORMATS:
        x = quantize_rows(x, activation=weight.activation)
    values = x if isinstance(x, Tensor) else x.values
    return values if values.dtype is weight.dtype else values.to(weight.dtype)


@implements(ops.linear, is_narrow=True)
def linear(x: Tensor | RoundedRows, weight: TorchWeight, bias: Tensor | None = None) -> Tensor:
    y = weight.multiply(activation_values(x, weight))
    return y if bias is None else y.add_(bias)


@implements(ops.linear_group, is_narrow=True)
def linear_group(
    x: Tensor | RoundedRows, weights: tuple[TorchWeight, ...], biases: tuple[Any, ...] = ()
) -> tuple[Tensor, ...]:
    products = multiply_all(activation_values(x, weights[0]), weights)
    return tuple(
        y if bias is None else y.add_(bias) for y, bias in zip(products, biases or [None] * len(weights), strict=True)
    )


@implements(ops.linear_silu_mul, is_narrow=True)
def linear_silu_mul(x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight) -> Tensor:
    return silu_mul(*multiply_all(activation_values(x, gate), (gate, up)))


@implements(ops.linear_activate_mul, is_narrow=True)
def linear_activate_mul(x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight, *, kind: str) -> Tensor:
    return activate_mul(*multiply_all(activation_values(x, gate), (gate, up)), kind=kind)
