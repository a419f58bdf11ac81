"""IQ4_XS panels: nibbles of uneven levels in eight runs of 32, each with a scale from -32 to 31, stored as a byte."""

from sporelm.backends.cpu.formats.code_panels import CodePanels, nibble
from sporelm.backends.cpu.formats.nibble_panels import NIBBLES
from sporelm.backends.cpu.jit import Builder, Val, i16, i32
from sporelm.quant.nonuniform_levels import IQ4_LEVELS

FILE_UPPER, FILE_SCALES, FILE_NIBBLES = 2, 4, 8  # offsets in a block of the file


class IQ4_XSPanels(CodePanels):
    name = "IQ4_XS"
    row_block = 136
    table = tuple(int(level) for level in IQ4_LEVELS)

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        with k.range(8) as run, k.range(4) as w:
            both = k.load(i32, block, run * 16 + w * 4 + FILE_NIBBLES, align=1)
            k.store(both & NIBBLES, codes, run * 32 + w * 4)
            k.store((both >> 4) & NIBBLES, codes, run * 32 + w * 4 + 16)

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        upper = k.load(i16, block, FILE_UPPER, align=1).zext(i32) >> (run * 2).trunc(i32)
        return (nibble(k, block, FILE_SCALES, run) | ((upper & 3) << 4)) - 32
