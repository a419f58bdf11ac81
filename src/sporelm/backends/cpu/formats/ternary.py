"""TQ1_0 and TQ2_0 panels: -1, 0 and 1 with one factor for 256 values, two bits each."""

from sporelm.backends.cpu.formats.code_panels import CodePanels, spread_pairs
from sporelm.backends.cpu.jit import Builder, Val, i32

EVEN = 0x00FF00FF  # two bytes of a dword, with room for products
PARTS = ((0, 8, 5, 0), (32, 4, 5, 40), (48, 1, 4, 60))  # TQ1_0: first byte, dwords, digits of a byte, first word


class TernaryPanels(CodePanels):
    bits = 2
    zero = 1
    has_scales = False


class TQ2_0Panels(TernaryPanels):
    name = "TQ2_0"
    row_block = 66
    factor_at = 64

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        spread_pairs(k, block, 0, codes)


class TQ1_0Panels(TernaryPanels):
    """Panels of a file format with five base-3 digits per byte: a fraction of 256; times 3^d it begins with digit d."""

    name = "TQ1_0"
    row_block = 54
    factor_at = 52

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        for start, dwords, digits, first in PARTS:
            with k.range(dwords) as w:
                four = k.load(i32, block, w * 4 + start, align=1)
                for digit in range(digits):
                    even, odd = (_digit(side & EVEN, 3**digit) for side in (four, four >> 8))
                    k.store(even | (odd << 8), codes, w * 4 + 4 * (first + dwords * digit))


def _digit(fractions: Val, power: int) -> Val:
    """Return a digit of two bytes, each in 16 bits."""
    return (((fractions * power) & EVEN) * 3 >> 8) & EVEN
