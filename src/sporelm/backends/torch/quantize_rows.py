"""Rows rounded for integer dot products."""

from typing import NamedTuple

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.ops.quantize_rows import ROW_FORMATS


class RoundedRows(NamedTuple):
    """Rows rounded for an integer dot product, as the numbers that it multiplies: [tokens, (k,) width]."""

    values: Tensor  # float32, or rounded to the activation type

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


@implements(ops.quantize_rows, is_narrow=True)
def quantize_rows(x: Tensor, *, activation: str = "int8/32") -> RoundedRows:
    """Round rows. Divisions are by tensors: by a Python number, some devices multiply by a rounded reciprocal."""
    group = ROW_FORMATS[activation].values
    groups = x.float().unflatten(-1, (-1, group))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    steps = torch.full_like(largest, 127)
    inverse = steps / largest
    integers = (groups * inverse.masked_fill_(inverse.isinf(), 0)).round_()
    return RoundedRows(integers.mul_(largest / steps).flatten(-2).to(x.dtype))
