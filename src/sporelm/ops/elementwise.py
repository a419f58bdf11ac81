"""Ops on elements of equal place."""

from typing import Any

import numpy as np

from sporelm.ops.arguments import wide
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec


def like_both(x: Any, y: Any) -> Spec:
    """The common spec of two arguments, float32 [rows, width] or [tokens, k, width], that must have one."""
    left, right = wide("x", x), wide("y", y)
    require(left == right, f"shapes must be equal, got {left} and {right}")
    return left


@op(like_both)
def add(x, y):  # x, y [tokens, width]
    """Sum, element by element."""
    return x + y


def _clamped(gate: Any, up: Any, *, alpha: float, limit: float) -> Spec:
    require(limit > 0, f"limit {limit} must be positive")
    return like_both(gate, up)


@op(like_both)
def silu_mul(gate, up):  # gate, up [tokens, width]
    """silu(gate) * up with silu(x) = x / (1 + exp(-x)), in float32 (Hendrycks, Gimpel 2016; SwiGLU, Shazeer 2020)."""
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


@op(_clamped)
def clamped_swiglu(gate, up, *, alpha, limit):  # gate, up [tokens, width]
    """(up + 1) * gate * sigmoid(alpha * gate), once gate is at most `limit` and up between -limit and limit (gpt-oss,
    whose alpha is 1.702 and limit 7)."""
    gate, up = np.minimum(gate, np.float32(limit)), np.clip(up, np.float32(-limit), np.float32(limit))
    with np.errstate(over="ignore"):
        return (up + 1) * (gate / (1 + np.exp(np.float32(-alpha) * gate)))
