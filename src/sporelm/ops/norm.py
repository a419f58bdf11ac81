"""Norms of rows."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed, spec_of


def rms_norm_spec(x: Any, weight: Any, *, eps: float) -> Spec:
    """Return the result spec of `rms_norm`."""
    if len(spec_of(weight).shape) == 2:
        return head_norm_spec(check_rows("x", x), weight)
    wide, scale = check_rows("x", x), check_vector("weight", weight)
    size = require_fixed(scale.shape[0])
    whole = size > 0 and require_fixed(wide.shape[1]) % size == 0
    require(whole, f"weight {scale} must have one element a column of x {wide}, or of each of its heads")
    return wide


def head_norm_spec(wide: Spec, weight: Any) -> Spec:
    """Check that a norm's weight has one row for each head, and return the result spec."""
    heads = check_rows("weight", weight)
    whole = require_fixed(heads.shape[0]) * require_fixed(heads.shape[1]) == wide.shape[1]
    require(whole, f"weight {heads} must have a row for each head, together one element a column of x {wide}")
    return wide


def layer_norm_spec(x: Any, weight: Any = None, bias: Any = None, *, eps: float) -> Spec:
    """Return the result spec of `layer_norm`."""
    wide = check_rows("x", x)
    if weight is None or len(spec_of(weight).shape) != 2:
        return row_norm_spec(wide, weight, bias)
    require(bias is None, "norms of heads have no bias")
    return head_norm_spec(wide, weight)


def row_norm_spec(wide: Spec, weight: Any, bias: Any) -> Spec:
    """Check that the vectors of a norm are as wide as the rows, and return the result spec."""
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None:
            found = check_vector(name, given)
            require(found.shape == wide.shape[1:], f"{name} {found} must have one element a column of x {wide}")
    return wide


def add_rms_norm_spec(x: Any, residual: Any, weight: Any, *, eps: float) -> tuple[Spec, Spec]:
    """Return the result specs of `add_rms_norm`."""
    wide = row_norm_spec(check_rows("x", x), weight, None)
    require(spec_of(residual) == wide, f"residual {spec_of(residual)} must be like x {wide}")
    return wide, wide


def add_layer_norm_spec(
    x: Any, residual: Any, weight: Any = None, bias: Any = None, *, eps: float
) -> tuple[Spec, Spec]:
    """Return the result specs of `add_layer_norm`."""
    wide = row_norm_spec(check_rows("x", x), weight, bias)
    require(spec_of(residual) == wide, f"residual {spec_of(residual)} must be like x {wide}")
    return wide, wide


@op(rms_norm_spec)
def rms_norm(x, weight, *, eps):  # x [tokens, width], weight [width], or [head_dim] or [heads, head_dim] for heads
    """Divide each row by its root mean square, then scale (Zhang and Sennrich 2019).

    A shorter weight applies to each head: every group of that many columns is normalised by itself (norms of queries
    and keys). The same holds for a weight with one row per head.
    """
    heads = x.reshape(len(x), *weight.shape) if weight.ndim == 2 else x.reshape(-1, len(weight))
    mean_square = np.mean(heads.astype(np.float64) ** 2, axis=-1, keepdims=True)
    return (heads * (1 / np.sqrt(mean_square + eps)).astype(np.float32) * weight).astype(np.float32).reshape(x.shape)


@op(layer_norm_spec)
def layer_norm(x, weight=None, bias=None, *, eps):  # x [tokens, width], weight and bias [width]
    """Subtract each row's mean, divide by its standard deviation, scale, and add a bias (Ba et al. 2016).

    A weight [heads, head_dim] has one row per head: every head is normalised by itself (norms of queries and keys,
    Dehghani et al. 2023).
    """
    wide = (x if weight is None or weight.ndim == 1 else x.reshape(len(x), *weight.shape)).astype(np.float64)
    wide = wide - wide.mean(axis=-1, keepdims=True)
    wide = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps)
    result = wide.astype(np.float32)
    if weight is not None:
        result = (result * weight).reshape(x.shape)
    return result if bias is None else result + bias


def _group_norm_spec(x: Any, weight: Any, bias: Any, *, group: int, eps: float) -> Spec:
    wide = check_rows("x", x)
    require(
        group > 0 and require_fixed(wide.shape[1]) % group == 0, f"x {wide} must be whole groups of {group} columns"
    )
    if check_vector("weight", weight).shape != (group,):
        return row_norm_spec(wide, weight, bias)
    require(check_vector("bias", bias).shape == (group,), f"bias {spec_of(bias)} must be like weight {spec_of(weight)}")
    return wide


@op(_group_norm_spec)
def group_norm(x, weight, bias, *, group, eps):  # x [tokens, width], weight and bias [width], or [group] for all groups
    """Apply layer_norm to each group of `group` columns (Wu, He 2018)."""
    runs = layer_norm.reference(x.reshape(-1, group), eps=eps).reshape(-1, len(weight))
    return (runs * weight + bias).reshape(x.shape)


@op(add_rms_norm_spec)
def add_rms_norm(x, residual, weight, *, eps):  # x, residual [tokens, width], weight [width]
    """Return rms_norm(x + residual), and the sum itself."""
    total = x + residual
    return rms_norm.reference(total, weight, eps=eps), total


@op(add_layer_norm_spec)
def add_layer_norm(x, residual, weight=None, bias=None, *, eps):  # x, residual [tokens, width], weight, bias [width]
    """Return layer_norm(x + residual), and the sum itself."""
    total = x + residual
    return layer_norm.reference(total, weight, bias, eps=eps), total
