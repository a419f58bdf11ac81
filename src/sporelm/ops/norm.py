"""Normalisation of rows."""

from typing import Any

import numpy as np

from sporelm.ops.arguments import rows, vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed, spec_of


def normed(x: Any, weight: Any, *, eps: float) -> Spec:
    """Rule of `rms_norm`."""
    if len(spec_of(weight).shape) == 2:
        return of_heads(rows("x", x), weight)
    wide, scale = rows("x", x), vector("weight", weight)
    size = fixed(scale.shape[0])
    whole = size > 0 and fixed(wide.shape[1]) % size == 0
    require(whole, f"weight {scale} must have one element a column of x {wide}, or of each of its heads")
    return wide


def of_heads(wide: Spec, weight: Any) -> Spec:
    """What norms of heads ask of a weight that has a row for each."""
    heads = rows("weight", weight)
    whole = fixed(heads.shape[0]) * fixed(heads.shape[1]) == wide.shape[1]
    require(whole, f"weight {heads} must have a row for each head, together one element a column of x {wide}")
    return wide


def centred(x: Any, weight: Any = None, bias: Any = None, *, eps: float) -> Spec:
    """Rule of `layer_norm`."""
    wide = rows("x", x)
    if weight is None or len(spec_of(weight).shape) != 2:
        return centred_rows(wide, weight, bias)
    require(bias is None, "norms of heads have no bias")
    return of_heads(wide, weight)


def centred_rows(wide: Spec, weight: Any, bias: Any) -> Spec:
    """What layer norms of whole rows ask of their vectors."""
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None:
            found = vector(name, given)
            require(found.shape == wide.shape[1:], f"{name} {found} must have one element a column of x {wide}")
    return wide


def normed_sum(x: Any, residual: Any, weight: Any, *, eps: float) -> tuple[Spec, Spec]:
    """Rule of `add_rms_norm`."""
    wide = centred_rows(rows("x", x), weight, None)
    require(spec_of(residual) == wide, f"residual {spec_of(residual)} must be like x {wide}")
    return wide, wide


def centred_sum(x: Any, residual: Any, weight: Any = None, bias: Any = None, *, eps: float) -> tuple[Spec, Spec]:
    """Rule of `add_layer_norm`."""
    wide = centred_rows(rows("x", x), weight, bias)
    require(spec_of(residual) == wide, f"residual {spec_of(residual)} must be like x {wide}")
    return wide, wide


@op(normed)
def rms_norm(x, weight, *, eps):  # x [tokens, width], weight [width], or [head_dim] or [heads, head_dim] for heads
    """Divide each row by its root mean square, then scale (Zhang and Sennrich 2019).

    A shorter weight is that of one head: each run of so many columns is a row of its own (norms of queries and keys);
    so it is where each head has a row of the weight.
    """
    heads = x.reshape(len(x), *weight.shape) if weight.ndim == 2 else x.reshape(-1, len(weight))
    mean_square = np.mean(heads.astype(np.float64) ** 2, axis=-1, keepdims=True)
    return (heads * (1 / np.sqrt(mean_square + eps)).astype(np.float32) * weight).astype(np.float32).reshape(x.shape)


@op(centred)
def layer_norm(x, weight=None, bias=None, *, eps):  # x [tokens, width], weight and bias [width]
    """Each row less its mean, divided by its deviation, then scaled, plus a bias (Ba et al. 2016).

    A weight [heads, head_dim] is one for each head: each run of so many columns is a row of its own (norms of queries
    and keys, Dehghani et al. 2023).
    """
    wide = (x if weight is None or weight.ndim == 1 else x.reshape(len(x), *weight.shape)).astype(np.float64)
    wide = wide - wide.mean(axis=-1, keepdims=True)
    wide = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps)
    result = wide.astype(np.float32)
    if weight is not None:
        result = (result * weight).reshape(x.shape)
    return result if bias is None else result + bias


def _grouped(x: Any, weight: Any, bias: Any, *, group: int, eps: float) -> Spec:
    wide = rows("x", x)
    require(group > 0 and fixed(wide.shape[1]) % group == 0, f"x {wide} must be whole groups of {group} columns")
    if vector("weight", weight).shape != (group,):
        return centred_rows(wide, weight, bias)
    require(vector("bias", bias).shape == (group,), f"bias {spec_of(bias)} must be like weight {spec_of(weight)}")
    return wide


@op(_grouped)
def group_norm(x, weight, bias, *, group, eps):  # x [tokens, width], weight and bias [width], or [group] for all runs
    """layer_norm of each run of `group` columns by itself (Wu, He 2018)."""
    runs = layer_norm.meaning(x.reshape(-1, group), eps=eps).reshape(-1, len(weight))
    return (runs * weight + bias).reshape(x.shape)


@op(normed_sum)
def add_rms_norm(x, residual, weight, *, eps):  # x, residual [tokens, width], weight [width]
    """rms_norm(x + residual), and the sum itself."""
    total = x + residual
    return rms_norm.meaning(total, weight, eps=eps), total


@op(centred_sum)
def add_layer_norm(x, residual, weight=None, bias=None, *, eps):  # x, residual [tokens, width], weight, bias [width]
    """layer_norm(x + residual), and the sum itself."""
    total = x + residual
    return layer_norm.meaning(total, weight, bias, eps=eps), total
