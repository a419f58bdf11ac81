"""Products through plain torch; `Weight` and `Rounded` are how packed weights and rounded rows lie here."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sporelm.ops.linear import ROW_FORMATS


class Weight(NamedTuple):
    """A weight matrix, dequantized once, and the activation numbers that its format multiplies."""

    values: Tensor  # float32 [out, in], or [experts, out, in]
    activation: str

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


class Rounded(NamedTuple):
    """Rows rounded for an integer dot product, as the float32 numbers that it multiplies: [tokens, (k,) width]."""

    values: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return gate / (1 + torch.exp(-gate)) * up


def quantize_rows(x: Tensor, *, activation: str = "int8/32") -> Rounded:
    """Divisions are of tensors: by a Python number, some devices multiply by a rounded reciprocal."""
    group = ROW_FORMATS[activation].values
    groups = x.unflatten(-1, (-1, group))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    steps = torch.full_like(largest, 127)
    inverse = steps / largest
    integers = (groups * inverse.masked_fill(inverse.isinf(), 0)).round()
    return Rounded((integers * (largest / steps)).flatten(-2))


def multiplied(x: Tensor | Rounded, weight: Weight) -> Tensor:
    """The numbers of x that a weight multiplies."""
    if isinstance(x, Tensor) and weight.activation in ROW_FORMATS:
        x = quantize_rows(x, activation=weight.activation)
    return x if isinstance(x, Tensor) else x.values


def linear(x: Tensor | Rounded, weight: Weight, bias: Tensor | None = None) -> Tensor:
    y = multiplied(x, weight) @ weight.values.T
    return y if bias is None else y + bias


def linear_group(x: Tensor | Rounded, weights: tuple[Weight, ...], biases: tuple[Any, ...] = ()) -> tuple[Tensor, ...]:
    return tuple(linear(x, *pair) for pair in zip(weights, biases or [None] * len(weights), strict=True))


def linear_silu_mul(x: Tensor | Rounded, gate: Weight, up: Weight) -> Tensor:
    return silu_mul(linear(x, gate), linear(x, up))


def add_lora(y: Tensor, x: Tensor, which: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> Tensor:
    """One adapter after the other; `which` is a numpy array."""
    result = y.clone()
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        chosen = (which == number).nonzero()[0].tolist()
        if down is not None and chosen:
            rows = torch.tensor(chosen, device=y.device)
            result.index_add_(0, rows, (x.index_select(0, rows) @ down.T) @ up)
    return result
