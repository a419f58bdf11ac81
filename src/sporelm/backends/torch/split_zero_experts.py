"""The split of zero-computation experts through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.split_zero_experts)
def split_zero_experts(weights: Tensor, ids: Tensor, *, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    idle, total = ids >= experts, torch.zeros_like(weights[:, 0])
    for slot in range(ids.shape[1]):
        total = total + weights[:, slot].where(idle[:, slot], 0)
    slots = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).masked_fill(idle, ids.shape[1] - 1)
    first = ids.gather(1, slots.amin(dim=1, keepdim=True)).masked_fill(idle.all(dim=1, keepdim=True), 0)
    return weights.masked_fill(idle, 0), ids.where(~idle, first), total[:, None]
