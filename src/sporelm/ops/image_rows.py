"""Merges a tower's rows into the rows of a prompt: replaces them, or adds to them."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_ints, check_range, check_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed


def _image_rows_spec(x: Any, values: Any, rows: Any, *, first: int = 0) -> Spec:
    x_spec, values_spec, rows_spec = check_rows("x", x), check_rows("values", values), check_ints("rows", rows)
    require(rows_spec.shape[0] == x_spec.shape[0], f"rows {rows_spec} must have one element for each row of x {x_spec}")
    require(first >= 0, f"first {first} must not be negative")
    columns = require_fixed(values_spec.shape[1]) - first
    require(
        require_fixed(x_spec.shape[1]) <= columns,
        f"values {values_spec} must have the columns of x {x_spec} from {first} on",
    )
    return x_spec


def _check_image_rows(x: Any, values: Any, rows: Any, **options: Any) -> None:
    check_range("rows", rows.numpy(), -1, values.shape[0])


@op(_image_rows_spec, indices=_check_image_rows)
def replace_rows(x, values, rows, *, first=0):  # x [tokens, width], values [image_rows, columns], rows int32 [tokens]
    """Return values[rows[i], first : first + width] in place of row i of x where rows[i] is not -1, else row i.

    This inserts image embeddings into a prompt's embeddings (LLaVA, Liu et al. 2023). `first` selects among
    results that stand side by side in `values`, one block of `width` columns for each use (Qwen3-VL's DeepStack).
    """
    return np.where((rows >= 0)[:, None], _picture_rows(x, values, rows, first), x)


@op(_image_rows_spec, indices=_check_image_rows)
def add_rows(x, values, rows, *, first=0):  # x [tokens, width], values [image_rows, columns], rows int32 [tokens]
    """Return x[i] + values[rows[i], first : first + width] where rows[i] is not -1, else exactly row i of x.

    DeepStack (Meng et al. 2024) adds image features to the residual stream of the first layers with this op.
    """
    return np.where((rows >= 0)[:, None], x + _picture_rows(x, values, rows, first), x)


def _picture_rows(x: Any, values: Any, rows: Any, first: int) -> Any:
    """Return the row of `values` for each row of x; where there is none, any row, or zeros if there are no values."""
    if not len(values):
        return np.zeros_like(x)
    return values[np.maximum(rows, 0), first : first + x.shape[1]]
