"""Embedding lookup."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_ints, check_matrix
from sporelm.ops.op import op
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32


def _embedding_spec(ids: Any, table: Any, *, fills: bool = False) -> Spec:
    return Spec((check_ints("ids", ids).shape[0], check_matrix("table", table).shape[1]), F32)


@op(_embedding_spec)
def embedding(ids, table, *, fills=False):  # ids int32 [tokens], table [vocab, width] of any format
    """Return the table's row of each id as float32. For an id outside the table return NaN, or its first row with
    `fills`."""
    known = (ids >= 0) & (ids < table.shape[0])
    found = table.take(np.where(known, ids, 0))
    if fills:
        return found
    return np.where(known[:, None], found, np.float32("nan"))
