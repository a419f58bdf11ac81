"""Products with weight matrices of any number format.

A format states its activation numbers: "float", "int8/32", "int8/256" or "e4m3/128". For "int8/...", each group of 32
or 256 values of a row is rounded to int8 with one float32 scale, as integer dot products need; for "e4m3/128" each
group of 128 values to FP8. The numpy reference does the same.
"""

from typing import Any

from sporelm.ops.activation import activate_mul, check_kind
from sporelm.ops.argument_checks import check_matrix, check_rows, check_vector
from sporelm.ops.elementwise import silu_mul
from sporelm.ops.op import op, require
from sporelm.ops.quantize_rows import ROW_FORMATS, QuantizedRows, RowFormat, quantize_rows
from sporelm.ops.spec import Extent, Spec, spec_of
from sporelm.tensor.dtype import F32


def _check_linear_rows(x: Any, weight: Any) -> Extent:
    given, packed = spec_of(x), check_matrix("weight", weight)
    if not isinstance(given.dtype, RowFormat):
        check_rows("x", x)
    require(given.shape[-1] == packed.shape[1], f"x {given} must have as many columns as weight {packed}")
    activation = getattr(packed.dtype, "activation", "")
    allowed = not isinstance(given.dtype, RowFormat) or activation == given.dtype.name
    require(allowed, f"x is {given.dtype.name} but weight {packed} multiplies {activation} activations")
    return given.shape[0]


def _linear_spec(x: Any, weight: Any, bias: Any = None) -> Spec:
    count, out = _check_linear_rows(x, weight), spec_of(weight).shape[0]
    if bias is not None:
        require(check_vector("bias", bias).shape == (out,), f"bias {spec_of(bias)} must have {out} elements")
    return Spec((count, out), F32)


def _check_same_format(weights: tuple[Any, ...]) -> None:
    formats = sorted({spec_of(weight).dtype.name for weight in weights})
    require(len(formats) == 1, f"weights of one x must be of one number format, not of {' and '.join(formats)}")


def _linear_group_spec(x: Any, weights: tuple[Any, ...], biases: tuple[Any, ...] = ()) -> tuple[Spec, ...]:
    require(len(weights) > 0, "linear_group needs at least one weight")
    require(len(biases) in (0, len(weights)), f"{len(biases)} biases for {len(weights)} weights; give none or one each")
    products = tuple(
        _linear_spec(x, weight, bias) for weight, bias in zip(weights, biases or [None] * len(weights), strict=True)
    )
    _check_same_format(weights)
    return products


def _linear_silu_mul_spec(x: Any, gate: Any, up: Any) -> Spec:
    left, right = _linear_spec(x, gate), _linear_spec(x, up)
    require(left == right, f"gate gives {left} but up gives {right}")
    _check_same_format((gate, up))
    return left


def _linear_activate_mul_spec(x: Any, gate: Any, up: Any, *, kind: str) -> Spec:
    check_kind(kind)
    return _linear_silu_mul_spec(x, gate, up)


@op(_linear_spec)
def linear(x, weight, bias=None):  # x [tokens, in] float or quantized rows, weight [out, in], bias [out]
    """Return x @ weight.T + bias, on the activation numbers that the weight's format states."""
    if not isinstance(x, QuantizedRows) and weight.format.activation in ROW_FORMATS:
        x = quantize_rows.reference(x, activation=weight.format.activation)
    if isinstance(x, QuantizedRows):
        x = x.dequantize()
    y = x @ weight.dequantize().T
    return y if bias is None else y + bias


@op(_linear_group_spec)
def linear_group(x, weights, biases=()):
    """Compute several products of one x, such as query, key and value."""
    return tuple(
        linear.reference(x, weight, bias) for weight, bias in zip(weights, biases or [None] * len(weights), strict=True)
    )


@op(_linear_silu_mul_spec)
def linear_silu_mul(x, gate, up):  # x [tokens, in], gate and up [width, in]
    """Return silu(x @ gate.T) * (x @ up.T)."""
    return silu_mul.reference(linear.reference(x, gate), linear.reference(x, up))


@op(_linear_activate_mul_spec)
def linear_activate_mul(x, gate, up, *, kind):  # x [tokens, in], gate and up [width, in]
    """Return activate(x @ gate.T) * (x @ up.T)."""
    return activate_mul.reference(linear.reference(x, gate), linear.reference(x, up), kind=kind)
