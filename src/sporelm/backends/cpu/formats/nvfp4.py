"""NVFP4 panels: doubled E2M1 numbers plus 16. A group is a block of the file, a scale serves half a block of 32.

Scales are E4M3 bytes: put into an f16, whose exponent has one bit more, they are 2^-8 of their value, also for
subnormal numbers. The highest bit is ignored, and NaN without it is 0: both are cleared when they are packed.
"""

from sporelm.backends.cpu.formats.table_panels import SPLIT_16, TablePanels
from sporelm.backends.cpu.jit import Builder, Val, i8, i16
from sporelm.backends.cpu.targets.cpu_target import widen_type
from sporelm.quant.nonuniform_levels import E2M1_DOUBLED

NAN = 0x7F


class NVFP4Panels(TablePanels):
    name = "NVFP4"
    levels = E2M1_DOUBLED
    element = i8
    blocks = file_blocks = 2
    parts = 2
    order = SPLIT_16

    @property
    def zero(self) -> int:
        return 16

    def encode_scales(self, k: Builder, stored: Val) -> Val:
        return k.select(stored.equals(NAN), k.const(stored.type, 0), stored & 0x7F)

    def factor(self, k: Builder, stored: Val) -> Val:
        """Return half of the byte's value, as the numbers are doubled."""
        halves = stored.zext(widen_type(stored.type, i16)) << 7
        return k.target.from_half(k, halves) * 2.0**7
