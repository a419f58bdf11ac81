"""Attention of rows to spans of keys through plain torch."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.ops.cross_attention import span_runs


class _EqualRuns(NamedTuple):
    """Runs of rows, one after the other, whose spans follow one another too: the windows of a picture, or one run."""

    runs: int
    first: int  # row
    rows: int  # of each run
    begin: int  # key
    keys: int  # of each run


@implements(ops.cross_attention, is_narrow=True)
def cross_attention(q: Tensor, k: Tensor, v: Tensor, spans: Any, *, head_dim: int, scale: float) -> Tensor:
    """Attend run by run of rows with equal spans. `spans` is a numpy array."""
    k, v = k.to(q.dtype), v.to(q.dtype)  # inputs of a program are float32, whatever the activation type
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for runs, first, rows, begin, keys in _equal_runs(spans):
        mine, seen = slice(first, first + runs * rows), slice(begin, begin + runs * keys)
        # [runs, heads, rows, head_dim]: torch's fused kernels take four dimensions only
        queries = q[mine].reshape(runs, rows, -1, head_dim).transpose(1, 2)
        held, values = (x[seen].reshape(runs, keys, -1, head_dim).transpose(1, 2) for x in (k, v))
        if group > 1:
            held, values = (x.repeat_interleave(group, dim=1) for x in (held, values))
        mixed = scaled_dot_product_attention(queries, held, values, scale=scale)
        out[mine] = mixed.transpose(1, 2).reshape(runs * rows, -1)
    return out


def _equal_runs(spans: np.ndarray) -> Iterator[_EqualRuns]:
    """Yield all runs of rows, neighbouring ones together where both their rows and their keys are equally many."""
    batch: _EqualRuns | None = None
    for first, last, begin, stop in span_runs(spans):
        rows, keys = last - first, stop - begin
        if batch and (batch.rows, batch.keys, batch.begin + batch.runs * keys) == (rows, keys, begin):
            batch = batch._replace(runs=batch.runs + 1)
            continue
        if batch:
            yield batch
        batch = _EqualRuns(1, first, rows, begin, keys)
    if batch:
        yield batch
