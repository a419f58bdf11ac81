"""IQ3_XXS and IQ3_S panels: eight magnitudes from code books and a sign, four bits together, in runs of 32."""

from sporelm.backends.cpu.formats.code_books import (
    MAGNITUDES_3_S,
    MAGNITUDES_3_XXS,
    code_book,
    even_signs,
    put_group,
    spread_signs,
)
from sporelm.backends.cpu.formats.code_panels import CodePanels, nibble
from sporelm.backends.cpu.jit import Builder, Val, i8, i32

SIGN = 3  # the bit of a code that makes it negative


class IQ3_XXSPanels(CodePanels):
    """Scales are odd quarters of the factor."""

    name = "IQ3_XXS"
    row_block = 98
    table = (*MAGNITUDES_3_XXS, *(-level for level in MAGNITUDES_3_XXS))
    step = 4

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        book = code_book(k, "IQ3_XXS", MAGNITUDES_3_XXS)
        with k.range(8) as run:
            word = self._word_of(k, block, run)
            for group in range(4):
                signs = spread_signs(even_signs(k, (word >> (7 * group)) & 127), SIGN)
                for half in range(2):
                    index = k.load(i8, block, run * 8 + (2 + 2 * group + half)).zext(i32)
                    put_group(k, book, index, 1, k.at(codes, run * 32 + (8 * group + 4 * half)), [signs[half]])

    def _word_of(self, k: Builder, block: Val, run: Val) -> Val:
        """Return four sign codes of seven bits, and above them four bits of the scale."""
        return k.load(i32, block, run * 4 + 66, align=1)

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        return ((self._word_of(k, block, run) >> 28) << 1) | 1


class IQ3_SPanels(CodePanels):
    """Scales are odd multiples of the factor."""

    name = "IQ3_S"
    row_block = 110
    table = (*MAGNITUDES_3_S, *(-level for level in MAGNITUDES_3_S))

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        book = code_book(k, "IQ3_S", MAGNITUDES_3_S)
        with k.range(8) as run:
            upper = k.load(i8, block, run + 66).zext(i32)
            for group in range(4):
                signs = spread_signs(k.load(i8, block, run * 4 + (74 + group)).zext(i32), SIGN)
                for half in range(2):
                    number = 2 * group + half
                    lower = k.load(i8, block, run * 8 + (2 + number)).zext(i32)
                    index = lower | (((upper >> number) & 1) << 8)
                    put_group(k, book, index, 1, k.at(codes, run * 32 + 4 * number), [signs[half]])

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        return (nibble(k, block, 106, run) << 1) | 1
