"""Selection and concatenation of rows and columns."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_ints, check_range, check_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed
from sporelm.tensor.dtype import F32


def _select_rows_spec(x: Any, wanted: Any) -> Spec:
    return Spec((check_ints("rows", wanted).shape[0], check_rows("x", x).shape[1]), F32)


def _check_row_indices(x: Any, wanted: Any) -> None:
    check_range("rows", wanted.numpy(), 0, x.shape[0])


def _select_columns_spec(x: Any, columns: Any) -> Spec:
    return Spec((check_rows("x", x).shape[0], check_ints("columns", columns).shape[0]), F32)


def _check_column_indices(x: Any, columns: Any) -> None:
    check_range("columns", columns.numpy(), 0, x.shape[1])


def _join_columns_spec(x: Any, y: Any, z: Any = None) -> Spec:
    given = [check_rows(name, part) for name, part in zip("xyz", (x, y, z), strict=True) if part is not None]
    same = all(part.shape[0] == given[0].shape[0] for part in given)
    require(same, f"{', '.join(map(str, given))} must have as many rows")
    return Spec((given[0].shape[0], sum(require_fixed(part.shape[1]) for part in given)), F32)


@op(_select_rows_spec, indices=_check_row_indices)
def select_rows(x, wanted):  # x [tokens, width], wanted int32 [outputs]
    """Return the rows whose results are needed."""
    return x[wanted]


@op(_select_columns_spec, indices=_check_column_indices)
def select_columns(x, columns):  # x [tokens, width], columns int32 [wanted]
    """Return the columns in this order, as a weight with reordered columns needs them."""
    return x[:, columns]


@op(_join_columns_spec)
def join_columns(x, y, z=None):  # x [tokens, width], y and z [tokens, their widths]
    """Concatenate rows: float32 [tokens, all widths]."""
    return np.concatenate([x, y] if z is None else [x, y, z], axis=1)
