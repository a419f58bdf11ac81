"""Collectives of groups whose ranks exchange values on the device (NCCL); the reference runs those of other groups."""

from typing import Any

from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.all_reduce)
def all_reduce(x: Tensor, *, group: Any) -> Tensor:
    """Return the sum of the x of all ranks. NCCL adds in an order of its own, any other group in rank order."""
    if group.is_on_device:
        total: Tensor = group.all_reduce_in_place(x.clone())
        return total
    return x.new_tensor(ops.all_reduce.reference(x.cpu().numpy(), group=group))
