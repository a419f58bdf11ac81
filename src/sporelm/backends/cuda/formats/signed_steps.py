"""Steps of super-blocks with a float16 factor, and a signed scale of 8 bits for each group, kept plus 128."""

import triton
import triton.language as tl

from sporelm.backends.cuda.formats.plane_format import small_integer


@triton.jit
def signed_steps(scales, factors, row, group, num_scales, magic, mask):
    """Steps of groups: factor * scale."""
    multiple = tl.load(scales + row * num_scales + group, mask=mask, other=128).to(tl.int32)
    return factors.to(tl.float32) * (small_integer(multiple, magic) - 128.0), 0.0
