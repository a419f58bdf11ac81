"""Products with expert matrices. `route` selects a few experts for each row of a step."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import (
    check_expert_matrices,
    check_ints,
    check_range,
    check_rows,
    check_rows_or_slots,
    check_vector,
)
from sporelm.ops.elementwise import silu_mul
from sporelm.ops.expert_routing import MAX_EXPERTS
from sporelm.ops.op import op, require
from sporelm.ops.quantize_rows import ROW_FORMATS, QuantizedRows, RowFormat, quantize_rows
from sporelm.ops.spec import Spec, spec_of
from sporelm.tensor.dtype import F32


def _linear_experts_spec(x: Any, weight: Any, ids: Any, bias: Any = None, *, first: int | None = None) -> Spec:
    given, packed, chosen = spec_of(x), check_expert_matrices("weight", weight), check_ints("ids", ids, 2)
    if not isinstance(given.dtype, RowFormat):
        check_rows_or_slots("x", x)
    experts, out, width = packed.shape
    require(given.shape[-1] == width, f"x {given} must have as many columns as weight {packed}")
    rows_fit = given.shape[:-1] in (chosen.shape[:1], chosen.shape)
    require(rows_fit, f"x {given} must have a row for each token of ids {chosen}, or for each of its experts")
    activation = getattr(packed.dtype, "activation", "")
    allowed = not isinstance(given.dtype, RowFormat) or activation == given.dtype.name
    require(allowed, f"x is {given.dtype.name} but weight {packed} multiplies {activation} activations")
    if bias is not None:
        require(check_rows("bias", bias).shape == (experts, out), f"bias {spec_of(bias)} must be {[experts, out]}")
    return Spec((*chosen.shape, out), F32)


def _linear_experts_silu_mul_spec(x: Any, gate: Any, up: Any, ids: Any, *, first: int | None = None) -> Spec:
    result = _linear_experts_spec(x, gate, ids)
    _linear_experts_spec(x, up, ids)
    left, right = spec_of(gate), spec_of(up)
    require(left == right, f"gate {left} and up {right} must be of one shape and one number format")
    return result


def _combine_experts_spec(y: Any, weights: Any, bias: Any = None) -> Spec:
    given, factors = check_rows_or_slots("y", y), check_rows("weights", weights)
    tokens, slots = factors.shape
    if len(given.shape) == 2:
        require(slots == 1, f"y {given} has one row a token: weights {factors} must have one column")
        require(given.shape[0] == tokens, f"y {given} and weights {factors} must have as many tokens")
    else:
        require(given.shape[:2] == (tokens, slots), f"y {given} must have a row for each of weights {factors}")
    if bias is not None:
        fits = check_vector("bias", bias).shape == given.shape[-1:]
        require(fits, f"bias {spec_of(bias)} must have as many numbers as a row of y {given}")
    return Spec((tokens, given.shape[-1]), F32)


def _check_ids(x: Any, weight: Any, ids: Any, bias: Any = None, *, first: int | None = None) -> None:
    check_range("ids", ids.numpy(), 0, weight.shape[0] if first is None else MAX_EXPERTS)


def _check_gated_ids(x: Any, gate: Any, up: Any, ids: Any, *, first: int | None = None) -> None:
    _check_ids(x, gate, ids, first=first)


@op(_linear_experts_spec, indices=_check_ids)
def linear_experts(x, weight, ids, bias=None, *, first=None):  # ids int32 [tokens, k]
    """Multiply each row by the matrices of its experts: weight [experts, out, in], bias [experts, out] -> [tokens, k,
    out].

    x [tokens, in] or [tokens, k, in] has one row per token, which all its experts multiply, or one row per expert. It
    holds floats or quantized rows, as in `linear`.

    With `first`, the weight has the experts from `first` on, one rank's part of a larger weight; the rows of other
    experts are zeros.
    """
    if not isinstance(x, QuantizedRows) and weight.format.activation in ROW_FORMATS:
        x = quantize_rows.reference(x, activation=weight.format.activation)
    if isinstance(x, QuantizedRows):
        x = x.dequantize()
    matrices = weight.dequantize()
    if first is None:
        result = np.empty((*ids.shape, matrices.shape[1]), np.float32)
    else:
        result, ids = np.zeros((*ids.shape, matrices.shape[1]), np.float32), ids - first
    for expert in np.unique(ids):
        if first is not None and not 0 <= expert < len(matrices):
            continue
        token, slot = np.nonzero(ids == expert)
        y = (x[token] if x.ndim == 2 else x[token, slot]) @ matrices[expert].T
        result[token, slot] = y if bias is None else y + bias[expert]
    return result


@op(_linear_experts_silu_mul_spec, indices=_check_gated_ids)
def linear_experts_silu_mul(x, gate, up, ids, *, first=None):  # gate and up [experts, width, in]
    """Return silu(gate's products) * up's products: [tokens, k, width]. `first` as in `linear_experts`."""
    products = [linear_experts.reference(x, weight, ids, first=first) for weight in (gate, up)]
    return silu_mul.reference(*products)


@op(_combine_experts_spec)
def combine_experts(y, weights, bias=None):  # y [tokens, k, width], or [tokens, width] where k is 1
    """Sum each token's k rows, each times its weight, in the order of the rows, then add the bias: [tokens, width].

    weights [tokens, k], bias [width]. A shared expert with its own gate has one row; its weight is `route` of one logit
    by "sigmoid".
    """
    y = y.reshape(*weights.shape, y.shape[-1])
    total = weights[:, 0, None] * y[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + weights[:, slot, None] * y[:, slot]
    return total if bias is None else total + bias
