"""Q3_K panels: three bits around 4 in sixteen runs of 16, each with a scale from -32 to 31, stored as a byte."""

from sporelm.backends.cpu.formats.code_panels import UPPER, spread_pairs
from sporelm.backends.cpu.formats.folded_panels import FoldedPanels
from sporelm.backends.cpu.formats.panels import shift
from sporelm.backends.cpu.jit import Builder, Val, i8, i32
from sporelm.backends.cpu.targets import CpuTarget

FILE_PAIRS, FILE_SCALES = 32, 96  # offsets in a block of the file; upper bits come first


class Q3_KPanels(FoldedPanels):
    """Panels whose folded bytes make a negative scale a positive one of 7 - code: (code - 4) * -s = ((7 - code) -
    3) * s."""

    name = "Q3_K"
    bits = 3
    row_block = 110
    factor_at = 108
    runs = 16
    zero = 4
    folded_largest = 7 * 32

    def __init__(self, target: CpuTarget, folded: bool = False) -> None:
        super().__init__(target, folded)
        self.middle = 1 if folded else self.zero

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        spread_pairs(k, block, FILE_PAIRS, codes)
        with k.range(8) as w:
            upper = k.load(i32, block, w * 4, align=1)
            for n in range(8):
                at = w * 4 + 32 * n
                k.store(k.load(i32, codes, at) | (shift(upper, 2 - n) & UPPER), codes, at)

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        """Return a scale: of twelve bytes the low nibbles of eight, then their high nibbles, and two bits in each
        byte of four."""
        low = k.load(i8, block, (run & 7) + FILE_SCALES).zext(i32)
        high = k.load(i8, block, (run & 3) + (FILE_SCALES + 8)).zext(i32)
        four = k.select(run < 8, low, low >> 4) & 15
        return (four | (((high >> ((run >> 2) * 2).trunc(i32)) & 3) << 4)) - 32

    def fold(self, word: Val, scale: Val) -> Val:
        negative = scale.arithmetic_shift(31)
        return (word ^ (negative & 0x07070707)) * ((scale ^ negative) - negative)

    def fold_pair(self, pair: Val) -> Val:
        negative = pair.arithmetic_shift(15)
        size = (pair ^ negative) - negative
        return (size << 2) - (size & negative)
