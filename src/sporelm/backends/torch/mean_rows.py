"""Mean pooling through plain torch."""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.mean_rows)
def mean_rows(x: Tensor, firsts: Any, stops: Any) -> Tensor:
    """Average text by text, so that texts do not affect each other. The bounds are numpy arrays."""
    bounds = zip(firsts.tolist(), stops.tolist(), strict=True)
    return torch.stack([x[first:stop].mean(dim=0) for first, stop in bounds])
