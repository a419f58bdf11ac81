"""Argmax and top-k of rows of logits."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32, I32


def _argmax_spec(logits: Any) -> Spec:
    return Spec(check_rows("logits", logits).shape[:1], I32)


def _top_k_spec(logits: Any, *, k: int) -> tuple[Spec, Spec]:
    outputs, vocab = check_rows("logits", logits).shape
    require(isinstance(vocab, int) and 1 <= k <= vocab, f"k {k} must lie between 1 and the {vocab} logits of a row")
    return Spec((outputs, k), F32), Spec((outputs, k), I32)


@op(_argmax_spec)
def argmax(logits):  # logits [outputs, vocab]
    """Return the id of each row's greatest logit, the lowest id among equals; -1 for a row with NaN."""
    return np.where(np.isnan(logits).any(axis=-1), -1, logits.argmax(axis=-1)).astype(np.int32)


@op(_top_k_spec)
def top_k(logits, *, k):  # logits [outputs, vocab]
    """Return the k greatest logits of each row in descending order and their ids, lower ids first among equals."""
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    return np.take_along_axis(logits, order, axis=-1), order.astype(np.int32)
