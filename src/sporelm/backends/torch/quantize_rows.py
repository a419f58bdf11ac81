"""Rows rounded for dot products in int8 or FP8."""

from typing import NamedTuple

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.ops.quantize_rows import E4M3_128, ROW_FORMATS
from sporelm.tensor.dtype import FLOAT8_MAX


class RoundedRows(NamedTuple):
    """Rows rounded for a dot product, as the numbers that it multiplies: [tokens, (k,) width]."""

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
    is_float = activation == E4M3_128.name
    steps = torch.full_like(largest, FLOAT8_MAX if is_float else 127)
    inverse = steps / largest
    scaled = groups * inverse.masked_fill_(inverse.isinf(), 0)
    rounded = scaled.clamp_(-FLOAT8_MAX, FLOAT8_MAX).to(torch.float8_e4m3fn).float() if is_float else scaled.round_()
    return RoundedRows(rounded.mul_(largest / steps).flatten(-2).to(x.dtype))
