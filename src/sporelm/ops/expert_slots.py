"""Rows per expert joined to one row per token, and split again, for attention whose heads experts compute."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_ints, check_range, check_rows, check_rows_or_slots
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed
from sporelm.tensor.dtype import F32


def _join_slots_spec(y: Any, columns: Any) -> Spec:
    given = check_rows_or_slots("y", y)
    require(len(given.shape) == 3, f"y {given} must have a row for each expert of a token")
    return Spec((given.shape[0], check_ints("columns", columns).shape[0]), F32)


def _check_joined_columns(y: Any, columns: Any) -> None:
    check_range("columns", columns.numpy(), 0, y.shape[1] * y.shape[2])


def _cut_slots_spec(x: Any, columns: Any, *, k: int) -> Spec:
    given, count = check_rows("x", x), require_fixed(check_ints("columns", columns).shape[0])
    require(k > 0 and count % k == 0, f"{count} columns must be a multiple of {k} experts")
    return Spec((given.shape[0], k, count // k), F32)


def _check_columns(x: Any, columns: Any, *, k: int) -> None:
    check_range("columns", columns.numpy(), 0, x.shape[1])


@op(_join_slots_spec, indices=_check_joined_columns)
def join_slots(y, columns):  # y [tokens, k, width], columns int32 [wanted]
    """Concatenate the rows of a token's experts, and select these columns: float32 [tokens, wanted]."""
    return y.reshape(len(y), -1)[:, columns]


@op(_cut_slots_spec, indices=_check_columns)
def cut_slots(x, columns, *, k):  # x [tokens, width], columns int32 [wanted]
    """Select these columns of each row, and split them into rows of `k` experts: float32 [tokens, k, wanted / k]."""
    return np.ascontiguousarray(x[:, columns]).reshape(len(x), k, -1)
