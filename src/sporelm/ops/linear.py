"""Products with weight matrices of any number format.

The format states which activation numbers it multiplies: "float", or "int8/32" or "int8/256", where each run of 32 or
256 values of a row is rounded to int8 with one float32 scale, as integer dot products need. The numpy meaning honours
them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sporelm.ops.activation import activate_mul, known_kind
from sporelm.ops.arguments import matrix, rows, vector, wide
from sporelm.ops.elementwise import silu_mul
from sporelm.ops.op import op, require
from sporelm.ops.spec import Extent, Spec, fixed, spec_of
from sporelm.quant.activations import quantize_int8
from sporelm.tensor.dtype import F32


@dataclass(frozen=True)
class RowFormat:
    """Element type of rows that are rounded for integer dot products; how their parts lie is up to the back-end."""

    name: str
    values: int  # that share one scale
    nbytes: int  # of the integers and the scale; back-ends may keep sums beside them


INT8_32 = RowFormat("int8/32", 32, 36)
INT8_256 = RowFormat("int8/256", 256, 260)
ROW_FORMATS = {kind.name: kind for kind in (INT8_32, INT8_256)}


class QuantizedRows(NamedTuple):
    """Rows as int8 with a float32 scale per group of values."""

    q: np.ndarray  # int8 [tokens, width], or [tokens, k, width]
    scales: np.ndarray  # float32 [tokens, groups], or [tokens, k, groups]
    dtype: RowFormat

    @property
    def shape(self) -> tuple[int, ...]:
        return self.q.shape

    def dequantize(self) -> np.ndarray:
        """float32 of the shape of `q`, the numbers that an integer dot product multiplies."""
        blocks = self.q.reshape(*self.scales.shape, self.dtype.values) * self.scales[..., None]
        return blocks.reshape(self.q.shape)


def _row_count(x: Any, weight: Any) -> Extent:
    given, packed = spec_of(x), matrix("weight", weight)
    if not isinstance(given.dtype, RowFormat):
        rows("x", x)
    require(given.shape[-1] == packed.shape[1], f"x {given} must have as many columns as weight {packed}")
    activation = getattr(packed.dtype, "activation", "")
    allowed = not isinstance(given.dtype, RowFormat) or activation == given.dtype.name
    require(allowed, f"x is {given.dtype.name} but weight {packed} multiplies {activation} activations")
    return given.shape[0]


def _product(x: Any, weight: Any, bias: Any = None) -> Spec:
    count, out = _row_count(x, weight), spec_of(weight).shape[0]
    if bias is not None:
        require(vector("bias", bias).shape == (out,), f"bias {spec_of(bias)} must have {out} elements")
    return Spec((count, out), F32)


def _alike(weights: tuple[Any, ...]) -> None:
    formats = sorted({spec_of(weight).dtype.name for weight in weights})
    require(len(formats) == 1, f"weights of one x must be of one number format, not of {' and '.join(formats)}")


def _products(x: Any, weights: tuple[Any, ...], biases: tuple[Any, ...] = ()) -> tuple[Spec, ...]:
    require(len(weights) > 0, "linear_group needs at least one weight")
    require(len(biases) in (0, len(weights)), f"{len(biases)} biases for {len(weights)} weights; give none or one each")
    products = tuple(
        _product(x, weight, bias) for weight, bias in zip(weights, biases or [None] * len(weights), strict=True)
    )
    _alike(weights)
    return products


def _gated(x: Any, gate: Any, up: Any) -> Spec:
    left, right = _product(x, gate), _product(x, up)
    require(left == right, f"gate gives {left} but up gives {right}")
    _alike((gate, up))
    return left


def _activated(x: Any, gate: Any, up: Any, *, kind: str) -> Spec:
    known_kind(kind)
    return _gated(x, gate, up)


def _quantized(x: Any, *, activation: str = INT8_32.name) -> Spec:
    require(activation in ROW_FORMATS, f"activation {activation!r} must be one of {', '.join(ROW_FORMATS)}")
    given, kind = wide("x", x), ROW_FORMATS[activation]
    whole = fixed(given.shape[-1]) % kind.values == 0
    require(whole, f"x {given} must have whole runs of {kind.values} columns, as every weight has that multiplies them")
    return Spec(given.shape, kind)


@op(_quantized)
def quantize_rows(x, *, activation="int8/32"):  # x [tokens, width], or [tokens, k, width]
    """Round each run of 32 (or 256) values to int8: scale = max|x| / 127, ties to even."""
    kind = ROW_FORMATS[activation]
    q, scales = quantize_int8(x.reshape(-1, x.shape[-1]), kind.values)
    return QuantizedRows(q.reshape(x.shape), scales.reshape(*x.shape[:-1], x.shape[-1] // kind.values), kind)


@op(_product)
def linear(x, weight, bias=None):  # x [tokens, in] float or quantized rows, weight [out, in], bias [out]
    """x @ weight.T + bias, on the activation numbers that the weight's format states."""
    if not isinstance(x, QuantizedRows) and weight.format.activation in ROW_FORMATS:
        x = quantize_rows.meaning(x, activation=weight.format.activation)
    if isinstance(x, QuantizedRows):
        x = x.dequantize()
    y = x @ weight.dequantize().T
    return y if bias is None else y + bias


@op(_products)
def linear_group(x, weights, biases=()):
    """Several products of one x, such as query, key and value."""
    return tuple(
        linear.meaning(x, weight, bias) for weight, bias in zip(weights, biases or [None] * len(weights), strict=True)
    )


@op(_gated)
def linear_silu_mul(x, gate, up):  # x [tokens, in], gate and up [width, in]
    """silu(x @ gate.T) * (x @ up.T)."""
    return silu_mul.meaning(linear.meaning(x, gate), linear.meaning(x, up))


@op(_activated)
def linear_activate_mul(x, gate, up, *, kind):  # x [tokens, in], gate and up [width, in]
    """activate(x @ gate.T) * (x @ up.T)."""
    return activate_mul.meaning(linear.meaning(x, gate), linear.meaning(x, up), kind=kind)
