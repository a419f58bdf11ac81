"""Q2_K panels: two bits in sixteen runs of 16, each with a scale and a minimum of four bits; the file's number of
bits."""

from collections.abc import Callable

from sporelm.backends.cpu.formats.code_panels import spread_pairs
from sporelm.backends.cpu.formats.folded_panels import FoldedPanels
from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32

FILE_PAIRS, FILE_FACTORS = 16, 80  # offsets in a block of the file; scales and minima come first


class Q2_KPanels(FoldedPanels):
    """Panels that keep the file's bytes: a scale in the low nibble, a minimum in the high one; and both factors."""

    name = "Q2_K"
    bits = 2
    row_block = 84
    runs = 16
    has_minima = True
    folded_largest = 3 * 15

    @property
    def group_bytes(self) -> int:
        return 84 * self.lanes

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        spread_pairs(k, block, FILE_PAIRS, codes)

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        return k.load(i8, block, run).zext(i32)

    def stored_factors(self, k: Builder, block: Val) -> list[Val]:
        return [k.load(i16, block, FILE_FACTORS + 2 * number, align=1) for number in range(2)]

    def scale_of(self, stored: Val) -> Val:
        return stored & 15

    def pair_of(self, stored: Val) -> Val:
        return (stored >> 4) & 15

    def minimum_factor_of(self, k: Builder, halves: Callable[[int], Val]) -> Val:
        return k.target.from_half(k, halves(1))
