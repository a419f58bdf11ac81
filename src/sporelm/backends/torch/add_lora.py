"""LoRA through plain torch."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.add_lora)
def add_lora(y: Tensor, x: Tensor, which: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> Tensor:
    """Add adapter by adapter. `which` is a numpy array."""
    result = y.clone()
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        chosen = (which == number).nonzero()[0].tolist()
        if down is not None and chosen:
            rows = torch.tensor(chosen, device=y.device)
            result.index_add_(0, rows, (x.index_select(0, rows) @ down.T) @ up)
    return result
