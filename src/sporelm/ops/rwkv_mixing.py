"""RWKV's token shift: rows mixed with the rows before them."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows, check_vector
from sporelm.ops.elementwise import check_same_shape
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, spec_of
from sporelm.ops.wkv import _sigmoid


def _mix_rows_spec(x: Any, delta: Any, mixes: Any, more: Any = ()) -> tuple[Spec, ...]:
    wide = check_same_shape(check_rows("x", x), delta)
    require(len(mixes) > 0, "mixes must be one vector or more")
    require(len(more) in (0, len(mixes)), f"{len(more)} further mixes for {len(mixes)} vectors")
    for mix in mixes:
        require(check_vector("mixes", mix).shape == wide.shape[1:], f"mixes {spec_of(mix)} must have a number a column")
    for given in more:
        require(check_rows("more", given) == wide, f"more {spec_of(given)} must be like x {wide}")
    return (wide,) * len(mixes)


@op(_mix_rows_spec)
def mix_rows(x, delta, mixes, more=()):  # x, delta [tokens, width]; each of mixes [width], of more [tokens, width]
    """Return x + mix * delta for each of `mixes`. `more` holds further mixes for each token (RWKV-6)."""
    added = more or [np.float32(0)] * len(mixes)
    return tuple(x + (mix + given) * delta for mix, given in zip(mixes, added, strict=True))


def _blend_spec(x: Any, y: Any, gate: Any) -> Spec:
    wide = check_same_shape(x, y)
    require(spec_of(gate) == wide, f"gate {spec_of(gate)} must be like x {wide}")
    return wide


@op(_blend_spec)
def blend(x, y, gate):  # x, y, gate [tokens, width]
    """Return x + (y - x) * sigmoid(gate)."""
    return x + (y - x) * _sigmoid(gate)
