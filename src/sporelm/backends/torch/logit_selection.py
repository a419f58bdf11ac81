"""Argmax and top-k through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.argmax, is_narrow=True)
def argmax(logits: Tensor) -> Tensor:
    """Return the first among equals, as torch guarantees."""
    return logits.argmax(dim=-1).masked_fill(logits.isnan().any(dim=-1), -1).int()


@implements(ops.top_k)
def top_k(logits: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """Sort stably: `torch.topk` does not guarantee an order among equals. NaN come last, as numpy sorts them."""
    order = torch.argsort(-logits, dim=-1, stable=True)[:, :k]
    return logits.gather(-1, order), order.int()
