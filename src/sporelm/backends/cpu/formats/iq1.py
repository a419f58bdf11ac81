"""IQ1_S and IQ1_M panels: -1, 0 or 1 from a code book, plus or minus an eighth.

IQ1_S shifts runs of 32: codes have two bits, and the rest is a minimum, whose eighths the panels store beside the
scale. IQ1_M shifts groups of eight, in runs of 16: its six values, in eighths, take three bits.
"""

from collections.abc import Callable

from sporelm.backends.cpu.formats.code_books import THIRDS, code_book, put_group
from sporelm.backends.cpu.formats.code_panels import CodePanels, nibble
from sporelm.backends.cpu.formats.folded_panels import FoldedPanels
from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32

UP, DOWN = 7, 9  # eighths below 0 of code 0, shifted up and shifted down
S_INDICES, S_WORDS = 2, 34  # offsets in a block of the file
M_UPPER, M_WORDS = 32, 48


class IQ1_SPanels(FoldedPanels):
    """Panels that store 2s + 1 in the low nibble and 7 or 9 in the high one."""

    name = "IQ1_S"
    bits = 2
    row_block = 50
    has_minima = True
    folded_largest = 2 * 15

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        book = code_book(k, "IQ1", THIRDS)
        with k.range(8) as run:
            word = self._word_of(k, block, run)
            for group in range(4):
                lower = k.load(i8, block, run * 4 + (S_INDICES + group)).zext(i32)
                index = lower | (((word >> (3 * group)) & 7) << 8)
                put_group(k, book, index, 2, k.at(codes, run * 32 + 8 * group))

    def _word_of(self, k: Builder, block: Val, run: Val) -> Val:
        return k.load(i16, block, run * 2 + S_WORDS, align=1).zext(i32)

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        word = self._word_of(k, block, run)
        return ((word >> 11) & 14) | 1 | (((word >> 15) * (DOWN - UP) + UP) << 4)

    def scale_of(self, stored: Val) -> Val:
        return stored & 15

    def pair_of(self, stored: Val) -> Val:
        return (stored & 15) * ((stored >> 4) & 15)

    def minimum_factor_of(self, k: Builder, halves: Callable[[int], Val]) -> Val:
        return k.target.from_half(k, halves(0)) * 0.125

    def scaled_values(self, k: Builder, whole: Val, stored: Val, factor: Val, drop: Val | None) -> Val:
        """Return values as integer multiples of an eighth, never 0: an infinite factor gives no NaN, as in the file's
        definition."""
        eighths = whole * 8.0 - k.splat(((stored >> 4) & 15).to_float())
        return eighths * k.splat(factor * 0.125 * self.scale_of(stored).to_float())


class IQ1_MPanels(CodePanels):
    """Panels with two bits for the book's number, and a third bit for a downward shift."""

    name = "IQ1_M"
    bits = 3
    row_block = 56
    runs = 16
    step = 8
    table = (-DOWN + 2, -DOWN + 10, -DOWN + 18, 0, -DOWN, -DOWN + 8, -DOWN + 16, 0)

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        book = code_book(k, "IQ1", THIRDS)
        with k.range(32) as group:
            upper = nibble(k, block, M_UPPER, group)
            index = k.load(i8, block, group).zext(i32) | ((upper & 7) << 8)
            down = ((upper >> 3) * 0x01010101) << 2
            put_group(k, book, index, 2, k.at(codes, group * 8), [down, down])

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        word = k.load(i16, block, (run >> 2) * 2 + M_WORDS, align=1).zext(i32)
        return (((word >> ((run & 3) * 3).trunc(i32)) & 7) << 1) | 1

    def stored_factors(self, k: Builder, block: Val) -> list[Val]:
        """Return the upper four bits of each word, the first word's lowest."""
        factor = k.const(i32, 0)
        for number in range(4):
            word = k.load(i16, block, M_WORDS + 2 * number, align=1).zext(i32)
            factor = factor | ((word >> 12) << (4 * number))
        return [factor.trunc(i16)]
