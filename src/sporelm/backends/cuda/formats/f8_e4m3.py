"""F8_E4M3: value = number * scale, in groups of 32, 64 or 128, or the number itself."""

import triton
import triton.language as tl

from sporelm.backends.cuda.formats.float8 import group_formats, plain_format
from sporelm.backends.cuda.formats.plane_format import e4m3_level


@triton.jit
def level(words, extra, table, magic, FIELD: tl.constexpr):
    return e4m3_level(words, FIELD)


FORMATS = group_formats(level)
PLAIN = plain_format(level)
