"""Picking rows and columns, and picking tokens from rows of logits."""

from typing import Any

import numpy as np

from sporelm.ops.arguments import ints, matrix, rows, within
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed
from sporelm.tensor.dtype import F32, I32


def _looked_up(ids: Any, table: Any, *, fills: bool = False) -> Spec:
    return Spec((ints("ids", ids).shape[0], matrix("table", table).shape[1]), F32)


def _selected(x: Any, wanted: Any) -> Spec:
    return Spec((ints("rows", wanted).shape[0], rows("x", x).shape[1]), F32)


def _rows_inside(x: Any, wanted: Any) -> None:
    within("rows", wanted.numpy(), 0, x.shape[0])


def _columns_selected(x: Any, columns: Any) -> Spec:
    return Spec((rows("x", x).shape[0], ints("columns", columns).shape[0]), F32)


def _columns_inside(x: Any, columns: Any) -> None:
    within("columns", columns.numpy(), 0, x.shape[1])


def _joined(x: Any, y: Any, z: Any = None) -> Spec:
    given = [rows(name, part) for name, part in zip("xyz", (x, y, z), strict=True) if part is not None]
    same = all(part.shape[0] == given[0].shape[0] for part in given)
    require(same, f"{', '.join(map(str, given))} must have as many rows")
    return Spec((given[0].shape[0], sum(fixed(part.shape[1]) for part in given)), F32)


def _one_each(logits: Any) -> Spec:
    return Spec(rows("logits", logits).shape[:1], I32)


def _k_each(logits: Any, *, k: int) -> tuple[Spec, Spec]:
    outputs, vocab = rows("logits", logits).shape
    require(isinstance(vocab, int) and 1 <= k <= vocab, f"k {k} must lie between 1 and the {vocab} logits of a row")
    return Spec((outputs, k), F32), Spec((outputs, k), I32)


@op(_looked_up)
def embedding(ids, table, *, fills=False):  # ids int32 [tokens], table [vocab, width] of any format
    """The table's row of each id, as float32; NaN for an id outside the table, or its first row if that `fills`."""
    known = (ids >= 0) & (ids < table.shape[0])
    found = table.take(np.where(known, ids, 0))
    if fills:
        return found
    return np.where(known[:, None], found, np.float32("nan"))


@op(_selected, indices=_rows_inside)
def select_rows(x, wanted):  # x [tokens, width], wanted int32 [outputs]
    """The rows whose results are wanted."""
    return x[wanted]


@op(_columns_selected, indices=_columns_inside)
def select_columns(x, columns):  # x [tokens, width], columns int32 [wanted]
    """The columns in this order: what a weight whose columns were put in order multiplies."""
    return x[:, columns]


@op(_joined)
def join_columns(x, y, z=None):  # x [tokens, width], y and z [tokens, their widths]
    """Rows one behind the other: float32 [tokens, all widths]."""
    return np.concatenate([x, y] if z is None else [x, y, z], axis=1)


@op(_one_each)
def argmax(logits):  # logits [outputs, vocab]
    """The id of each row's greatest logit, the lowest id among equals; -1 for a row that holds NaN."""
    return np.where(np.isnan(logits).any(axis=-1), -1, logits.argmax(axis=-1)).astype(np.int32)


@op(_k_each)
def top_k(logits, *, k):  # logits [outputs, vocab]
    """The k greatest logits of each row in falling order and their ids, lower ids first among equals."""
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    return np.take_along_axis(logits, order, axis=-1), order.astype(np.int32)
