"""Normalisation of rows."""

from typing import Any

import numpy as np

from sporelm.ops.arguments import rows, vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, spec_of


def normed(x: Any, weight: Any, *, eps: float) -> Spec:
    """Rule of `rms_norm`."""
    wide, scale = rows("x", x), vector("weight", weight)
    require(scale.shape == wide.shape[1:], f"weight {scale} must have one element a column of x {wide}")
    return wide


def normed_sum(x: Any, residual: Any, weight: Any, *, eps: float) -> tuple[Spec, Spec]:
    """Rule of `add_rms_norm`."""
    wide = normed(x, weight, eps=eps)
    require(spec_of(residual) == wide, f"residual {spec_of(residual)} must be like x {wide}")
    return wide, wide


@op(normed)
def rms_norm(x, weight, *, eps):  # x [tokens, width], weight [width]
    """Divide each row by its root mean square, then scale (Zhang and Sennrich 2019)."""
    mean_square = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    return (x * (1 / np.sqrt(mean_square + eps)).astype(np.float32) * weight).astype(np.float32)


@op(normed_sum)
def add_rms_norm(x, residual, weight, *, eps):  # x, residual [tokens, width], weight [width]
    """rms_norm(x + residual), and the sum itself."""
    total = x + residual
    return rms_norm.meaning(total, weight, eps=eps), total
