"""MXFP4 panels: doubled E2M1 numbers, two blocks a group, each with a byte for 2^(byte - 128).

16 is added to the numbers, which makes bytes without a sign of them on every target.
"""

from sporelm.backends.cpu.formats.tables import TablePanels
from sporelm.backends.cpu.jit import Builder, Val, f32, i8, i32
from sporelm.backends.cpu.targets.target import widened
from sporelm.quant.levels import E2M1_DOUBLED


class MXFP4Panels(TablePanels):
    name = "MXFP4"
    levels = E2M1_DOUBLED
    element = i8
    blocks = 2

    @property
    def zero(self) -> int:
        return 16

    def factor(self, k: Builder, stored: Val) -> Val:
        """The two least are subnormal numbers, whose bits have no exponent."""
        byte = stored.zext(widened(stored.type, i32))
        return k.select(byte < 2, (byte + 1) << 21, (byte - 1) << 23).bits(widened(stored.type, f32))
