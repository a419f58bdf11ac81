"""Steps of super-blocks of 256 values with two float16 factors, and a small scale and a small minimum for each group.

value = integer * (factor * scale) - minimum factor * minimum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import first_half, second_half, small_integer


def join_bytes(scales: Tensor, minimums: Tensor) -> Tensor:
    """Return scales and minimums, uint8 [n, groups] each, as pairs: int16 [n, groups]."""
    return torch.stack([scales, minimums], dim=2).view(torch.int16).squeeze(2)


def split_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eight 6-bit scales and minimums of uint8 [n, 12] (`sporelm.quant.packing.split_scales`)."""
    six, upper, lower = packed[:, :8] & 63, packed[:, :8] >> 6 << 4, packed[:, 8:]
    scales = torch.cat([six[:, :4], upper[:, :4] | lower & 15], dim=1)
    minimums = torch.cat([six[:, 4:], upper[:, 4:] | lower >> 4], dim=1)
    return scales, minimums


@triton.jit
def affine_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps and offsets of groups."""
    pairs = tl.load(scales + row * num_scales + group, mask=mask, other=0)
    pairs = pairs.to(tl.uint16, bitcast=True).to(tl.int32)
    step = first_half(factors) * small_integer(pairs & 255, magic)
    return step, (second_half(factors) * (-1.0 / 256)) * small_integer(pairs & 0xFF00, magic)
