"""MXFP4 panels: doubled E2M1 numbers, two blocks per group, each with a byte for 2^(byte - 128).

16 is added to the numbers, so that bytes are unsigned on every target.
"""

from sporelm.backends.cpu.formats.table_panels import TablePanels
from sporelm.backends.cpu.jit import Builder, Val, f32, i8, i32
from sporelm.backends.cpu.targets.cpu_target import widen_type
from sporelm.quant.nonuniform_levels import E2M1_DOUBLED


class MXFP4Panels(TablePanels):
    name = "MXFP4"
    levels = E2M1_DOUBLED
    element = i8
    blocks = 2

    @property
    def zero(self) -> int:
        return 16

    def factor(self, k: Builder, stored: Val) -> Val:
        """Return the factor of a byte. The two lowest are subnormal numbers, whose bits have no exponent."""
        byte = stored.zext(widen_type(stored.type, i32))
        return k.select(byte < 2, (byte + 1) << 21, (byte - 1) << 23).bits(widen_type(stored.type, f32))
