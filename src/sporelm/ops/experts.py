"""Products with the matrices of experts: each row of a step has a few experts of its own, which `route` chose."""

from typing import Any

import numpy as np

from sporelm.ops.arguments import expert_matrices, ints, rows, vector, wide, within
from sporelm.ops.elementwise import silu_mul
from sporelm.ops.linear import ROW_FORMATS, QuantizedRows, RowFormat, quantize_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, spec_of
from sporelm.tensor.dtype import F32


def _product(x: Any, weight: Any, ids: Any, bias: Any = None) -> Spec:
    given, packed, chosen = spec_of(x), expert_matrices("weight", weight), ints("ids", ids, 2)
    if not isinstance(given.dtype, RowFormat):
        wide("x", x)
    experts, out, width = packed.shape
    require(given.shape[-1] == width, f"x {given} must have as many columns as weight {packed}")
    rows_fit = given.shape[:-1] in (chosen.shape[:1], chosen.shape)
    require(rows_fit, f"x {given} must have a row for each token of ids {chosen}, or for each of its experts")
    activation = getattr(packed.dtype, "activation", "")
    allowed = not isinstance(given.dtype, RowFormat) or activation == given.dtype.name
    require(allowed, f"x is {given.dtype.name} but weight {packed} multiplies {activation} activations")
    if bias is not None:
        require(rows("bias", bias).shape == (experts, out), f"bias {spec_of(bias)} must be {[experts, out]}")
    return Spec((*chosen.shape, out), F32)


def _gated(x: Any, gate: Any, up: Any, ids: Any) -> Spec:
    result = _product(x, gate, ids)
    _product(x, up, ids)
    left, right = spec_of(gate), spec_of(up)
    require(left == right, f"gate {left} and up {right} must be of one shape and one number format")
    return result


def _combined(y: Any, weights: Any, bias: Any = None) -> Spec:
    given, factors = wide("y", y), rows("weights", weights)
    tokens, slots = factors.shape
    if len(given.shape) == 2:
        require(slots == 1, f"y {given} has one row a token: weights {factors} must have one column")
        require(given.shape[0] == tokens, f"y {given} and weights {factors} must have as many tokens")
    else:
        require(given.shape[:2] == (tokens, slots), f"y {given} must have a row for each of weights {factors}")
    if bias is not None:
        fits = vector("bias", bias).shape == given.shape[-1:]
        require(fits, f"bias {spec_of(bias)} must have as many numbers as a row of y {given}")
    return Spec((tokens, given.shape[-1]), F32)


def _experts_known(x: Any, weight: Any, ids: Any, bias: Any = None) -> None:
    within("ids", ids.numpy(), 0, weight.shape[0])


def _both_known(x: Any, gate: Any, up: Any, ids: Any) -> None:
    within("ids", ids.numpy(), 0, gate.shape[0])


@op(_product, indices=_experts_known)
def linear_experts(x, weight, ids, bias=None):  # x [tokens, in] or [tokens, k, in], ids int32 [tokens, k]
    """Each row times the matrices of its experts: weight [experts, out, in], bias [experts, out] -> [tokens, k, out].

    x has one row a token, which all its experts multiply, or one for each of them. It holds floats or rounded rows, as
    with `linear`.
    """
    if not isinstance(x, QuantizedRows) and weight.format.activation in ROW_FORMATS:
        x = quantize_rows.meaning(x, activation=weight.format.activation)
    if isinstance(x, QuantizedRows):
        x = x.dequantize()
    matrices = weight.dequantize()
    result = np.empty((*ids.shape, matrices.shape[1]), np.float32)
    for expert in np.unique(ids):
        token, slot = np.nonzero(ids == expert)
        y = (x[token] if x.ndim == 2 else x[token, slot]) @ matrices[expert].T
        result[token, slot] = y if bias is None else y + bias[expert]
    return result


@op(_gated, indices=_both_known)
def linear_experts_silu_mul(x, gate, up, ids):  # x [tokens, in] or [tokens, k, in], gate and up [experts, width, in]
    """silu(gate's products) * up's products: [tokens, k, width]."""
    return silu_mul.meaning(linear_experts.meaning(x, gate, ids), linear_experts.meaning(x, up, ids))


@op(_combined)
def combine_experts(y, weights, bias=None):  # y [tokens, k, width], or [tokens, width] where k is 1
    """The sum of each token's k rows, each times its weight, in the order of the rows, then the bias: [tokens, width].

    weights are [tokens, k], bias [width].
    A shared expert with a gate of its own is that of one row: its weight is `route` of one logit by "sigmoid".
    """
    y = y.reshape(*weights.shape, y.shape[-1])
    total = weights[:, 0, None] * y[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + weights[:, slot, None] * y[:, slot]
    return total if bias is None else total + bias
