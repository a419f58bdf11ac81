"""Rows joined from, and split for, a token's experts, through plain torch."""

from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.join_slots, is_narrow=True)
def join_slots(y: Tensor, columns: Tensor) -> Tensor:
    return y.flatten(1).index_select(1, columns)


@implements(ops.cut_slots, is_narrow=True)
def cut_slots(x: Tensor, columns: Tensor, *, k: int) -> Tensor:
    return x.index_select(1, columns).unflatten(1, (k, -1)).contiguous()
