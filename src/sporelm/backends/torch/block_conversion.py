"""The check for values that are not finite, through plain torch. Conversions of files have no torch functions."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.count_nonfinite)
def count_nonfinite(values: Tensor) -> Tensor:
    return (~values.isfinite()).sum(dim=1, dtype=torch.int32)
