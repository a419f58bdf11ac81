"""Products with packed weights through plain torch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.activation import activate_mul
from sporelm.backends.torch.elementwise import silu_mul
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.quantize_rows import RoundedRows, quantize_rows
from sporelm.ops.quantize_rows import ROW_FORMATS


class TorchWeight(NamedTuple):
    """A weight matrix, dequantized once, and the activation numbers that its format multiplies."""

    values: Tensor  # float32 [out, in], or [experts, out, in]
    activation: str

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


def activation_values(x: Tensor | RoundedRows, weight: TorchWeight) -> Tensor:
    """Return the numbers of x that a weight multiplies."""
    if isinstance(x, Tensor) and weight.activation in ROW_FORMATS:
        x = quantize_rows(x, activation=weight.activation)
    return x if isinstance(x, Tensor) else x.values


@implements(ops.linear)
def linear(x: Tensor | RoundedRows, weight: TorchWeight, bias: Tensor | None = None) -> Tensor:
    y = activation_values(x, weight) @ weight.values.T
    return y if bias is None else y + bias


@implements(ops.linear_group)
def linear_group(
    x: Tensor | RoundedRows, weights: tuple[TorchWeight, ...], biases: tuple[Any, ...] = ()
) -> tuple[Tensor, ...]:
    return tuple(linear(x, *pair) for pair in zip(weights, biases or [None] * len(weights), strict=True))


@implements(ops.linear_silu_mul)
def linear_silu_mul(x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight) -> Tensor:
    return silu_mul(linear(x, gate), linear(x, up))


@implements(ops.linear_activate_mul)
def linear_activate_mul(x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight, *, kind: str) -> Tensor:
    return activate_mul(linear(x, gate), linear(x, up), kind=kind)
