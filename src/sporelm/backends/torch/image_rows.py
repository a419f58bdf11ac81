"""Rows of pictures through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.replace_rows, is_narrow=True)
def replace_rows(x: Tensor, values: Tensor, rows: Tensor, *, first: int = 0) -> Tensor:
    if not len(values):
        return x.clone()
    return torch.where((rows >= 0)[:, None], _picture_rows(x, values, rows, first), x)


@implements(ops.add_rows, is_narrow=True)
def add_rows(x: Tensor, values: Tensor, rows: Tensor, *, first: int = 0) -> Tensor:
    if not len(values):
        return x.clone()
    return torch.where((rows >= 0)[:, None], x + _picture_rows(x, values, rows, first), x)


def _picture_rows(x: Tensor, values: Tensor, rows: Tensor, first: int) -> Tensor:
    """Return the row of `values` for each row of x, any row where there is none."""
    return values[:, first : first + x.shape[1]].index_select(0, rows.clamp(min=0)).to(x.dtype)
