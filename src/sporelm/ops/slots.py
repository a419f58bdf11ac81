"""What a token's experts make, as one row, and a row cut for its experts: for attention whose heads experts make."""

from typing import Any

import numpy as np

from sporelm.ops.arguments import ints, rows, wide, within
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed
from sporelm.tensor.dtype import F32


def _beside(y: Any, columns: Any) -> Spec:
    given = wide("y", y)
    require(len(given.shape) == 3, f"y {given} must have a row for each expert of a token")
    return Spec((given.shape[0], ints("columns", columns).shape[0]), F32)


def _beside_inside(y: Any, columns: Any) -> None:
    within("columns", columns.numpy(), 0, y.shape[1] * y.shape[2])


def _cut(x: Any, columns: Any, *, k: int) -> Spec:
    given, count = rows("x", x), fixed(ints("columns", columns).shape[0])
    require(k > 0 and count % k == 0, f"{count} columns are no whole rows of {k} experts")
    return Spec((given.shape[0], k, count // k), F32)


def _cut_inside(x: Any, columns: Any, *, k: int) -> None:
    within("columns", columns.numpy(), 0, x.shape[1])


@op(_beside, indices=_beside_inside)
def join_slots(y, columns):  # y [tokens, k, width], columns int32 [wanted]
    """The rows of a token's experts one behind the other, and of them these columns: float32 [tokens, wanted]."""
    return y.reshape(len(y), -1)[:, columns]


@op(_cut, indices=_cut_inside)
def cut_slots(x, columns, *, k):  # x [tokens, width], columns int32 [wanted]
    """These columns of each row as rows of `k` experts: float32 [tokens, k, wanted / k]."""
    return np.ascontiguousarray(x[:, columns]).reshape(len(x), k, -1)
