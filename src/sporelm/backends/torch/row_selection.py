"""Selection and concatenation of rows and columns through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.select_rows, is_narrow=True)
def select_rows(x: Tensor, wanted: Tensor) -> Tensor:
    return x.index_select(0, wanted)


@implements(ops.select_columns, is_narrow=True)
def select_columns(x: Tensor, columns: Tensor) -> Tensor:
    return x.index_select(1, columns)


@implements(ops.join_columns, is_narrow=True)
def join_columns(x: Tensor, y: Tensor, z: Tensor | None = None) -> Tensor:
    return torch.cat((x, y) if z is None else (x, y, z), dim=1)
