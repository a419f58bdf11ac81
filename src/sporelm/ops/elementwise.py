"""Elementwise ops of two arguments."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows_or_slots
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec


def check_same_shape(x: Any, y: Any) -> Spec:
    """Return the common spec of two arguments, float32 [rows, width] or [tokens, k, width]. Raise OpError if they
    differ."""
    left, right = check_rows_or_slots("x", x), check_rows_or_slots("y", y)
    require(left == right, f"shapes must be equal, got {left} and {right}")
    return left


@op(check_same_shape)
def add(x, y):  # x, y [tokens, width]
    """Add element by element."""
    return x + y


def _clamped_swiglu_spec(gate: Any, up: Any, *, alpha: float, limit: float) -> Spec:
    require(limit > 0, f"limit {limit} must be positive")
    return check_same_shape(gate, up)


@op(check_same_shape)
def silu_mul(gate, up):  # gate, up [tokens, width]
    """Return silu(gate) * up with silu(x) = x / (1 + exp(-x)), in float32 (Hendrycks, Gimpel 2016; SwiGLU, Shazeer
    2020)."""
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


@op(_clamped_swiglu_spec)
def clamped_swiglu(gate, up, *, alpha, limit):  # gate, up [tokens, width]
    """Return (up + 1) * gate * sigmoid(alpha * gate), with gate at most `limit` and up between -limit and limit.

    gpt-oss uses alpha 1.702 and limit 7.
    """
    gate, up = np.minimum(gate, np.float32(limit)), np.clip(up, np.float32(-limit), np.float32(limit))
    with np.errstate(over="ignore"):
        return (up + 1) * (gate / (1 + np.exp(np.float32(-alpha) * gate)))
