"""Embedding lookup."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_ints, check_matrix
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32


def _embedding_spec(ids: Any, table: Any, *, fills: bool = False, first: int | None = None) -> Spec:
    require(first is None or not fills, "a part of a table, from `first` on, cannot fill ids that it lacks")
    return Spec((check_ints("ids", ids).shape[0], check_matrix("table", table).shape[1]), F32)


@op(_embedding_spec)
def embedding(ids, table, *, fills=False, first=None):  # ids int32 [tokens], table [vocab, width] of any format
    """Return the table's row of each id as float32. For an id outside the table return NaN, or its first row with
    `fills`.

    With `first`, the table has the rows of ids from `first` on, one rank's part of a larger one; an id outside gives
    zeros, so that the sum over the ranks is the row.
    """
    if first is not None:
        ids = ids - first
    known = (ids >= 0) & (ids < table.shape[0])
    found = table.take(np.where(known, ids, 0))
    if fills:
        return found
    return np.where(known[:, None], found, np.float32("nan" if first is None else 0))
