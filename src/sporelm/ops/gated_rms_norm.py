"""RMS norm with a gate."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed, spec_of


def _gated_rms_norm_spec(
    x: Any, gate: Any, weight: Any, *, eps: float, group: int, first: str, activation: str = "silu"
) -> Spec:
    wide = check_rows("x", x)
    require(spec_of(gate) == wide, f"gate {spec_of(gate)} must be like x {wide}")
    width = require_fixed(wide.shape[1])
    require(group > 0 and width % group == 0, f"x {wide} must be whole groups of {group} columns")
    scale = check_vector("weight", weight) if len(spec_of(weight).shape) == 1 else check_rows("weight", weight)
    fits = scale.shape in ((group,), (width // group, group))
    require(fits, f"weight {scale} must have one element a column of a group, {group}, or be one for each group")
    require(first in ("norm", "gate"), f"first {first!r} must be 'norm' or 'gate'")
    require(activation in ("silu", "sigmoid"), f"activation {activation!r} must be 'silu' or 'sigmoid'")
    return wide


@op(_gated_rms_norm_spec)
def gated_rms_norm(x, gate, weight, *, eps, group, first, activation="silu"):
    """Apply rms_norm to each group of `group` columns, times silu or sigmoid of the gate: after the norm, or before it
    ("gate" first, Mamba 2).

    x, gate [tokens, width], weight [group] or [groups, group].
    """
    with np.errstate(over="ignore"):
        opened = (gate if activation == "silu" else np.float32(1)) / (1 + np.exp(-gate))
    runs = (x * opened if first == "gate" else x).reshape(len(x), -1, group)
    mean_square = np.mean(runs.astype(np.float64) ** 2, axis=-1, keepdims=True)
    scaled = runs * (1 / np.sqrt(mean_square + eps)).astype(np.float32) * weight
    result = scaled.astype(np.float32).reshape(x.shape)
    return result if first == "gate" else result * opened
