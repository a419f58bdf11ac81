"""IQ2_XXS, IQ2_XS and IQ2_S panels: three magnitudes from code books and a sign, three bits together."""

from sporelm.backends.cpu.formats.code_books import MAGNITUDES_2, code_book, even_signs, put_group, spread_signs
from sporelm.backends.cpu.formats.code_panels import CodePanels, nibble
from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32
from sporelm.backends.cpu.jit.ssa_values import i64

SIGN = 2  # the bit of a code that makes it negative


class IQ2Panels(CodePanels):
    """Scales are odd eighths of the factor."""

    bits = 3
    table = (*MAGNITUDES_2, 0, *(-level for level in MAGNITUDES_2), 0)
    step = 8


class IQ2_XXSPanels(IQ2Panels):
    name = "IQ2_XXS"
    row_block = 66

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        book = code_book(k, "IQ2_XXS", MAGNITUDES_2)
        with k.range(8) as run:
            word = self._word_of(k, block, run)
            for group in range(4):
                index = k.load(i8, block, run * 8 + (2 + group)).zext(i32)
                signs = spread_signs(even_signs(k, (word >> (7 * group)) & 127), SIGN)
                put_group(k, book, index, 2, k.at(codes, run * 32 + 8 * group), signs)

    def _word_of(self, k: Builder, block: Val, run: Val) -> Val:
        """Return four sign codes of seven bits, and above them four bits of the scale."""
        return k.load(i32, block, run * 8 + 6, align=1)

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        return ((self._word_of(k, block, run) >> 28) << 1) | 1


class IQ2_XSPanels(IQ2Panels):
    name = "IQ2_XS"
    row_block = 74
    runs = 16

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        book = code_book(k, "IQ2_XS", MAGNITUDES_2)
        with k.range(32) as group:
            word = k.load(i16, block, group * 2 + 2, align=1).zext(i32)
            signs = spread_signs(even_signs(k, word >> 9), SIGN)
            put_group(k, book, word & 511, 2, k.at(codes, group * 8), signs)

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        return (nibble(k, block, 66, run) << 1) | 1


class IQ2_SPanels(IQ2Panels):
    name = "IQ2_S"
    row_block = 82
    runs = 16

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        book = code_book(k, "IQ2_S", MAGNITUDES_2)
        with k.range(32) as group:
            four = k.load(i8, block, (group >> 2) + 66).zext(i64)
            upper = ((four >> ((group & 3) * 2)) & 3).trunc(i32)
            index = k.load(i8, block, group + 2).zext(i32) | (upper << 8)
            signs = spread_signs(k.load(i8, block, group + 34).zext(i32), SIGN)
            put_group(k, book, index, 2, k.at(codes, group * 8), signs)

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        return (nibble(k, block, 74, run) << 1) | 1
