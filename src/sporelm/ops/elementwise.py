"""Ops on elements of equal place."""

from typing import Any

import numpy as np

from sporelm.ops.arguments import rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec


def like_both(x: Any, y: Any) -> Spec:
    """The common spec of two arguments, float32 [rows, width], that must have one."""
    left, right = rows("x", x), rows("y", y)
    require(left == right, f"shapes must be equal, got {left} and {right}")
    return left


@op(like_both)
def add(x, y):  # x, y [tokens, width]
    """Sum, element by element."""
    return x + y


@op(like_both)
def silu_mul(gate, up):  # gate, up [tokens, width]
    """silu(gate) * up with silu(x) = x / (1 + exp(-x)), in float32 (Hendrycks, Gimpel 2016; SwiGLU, Shazeer 2020)."""
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up
