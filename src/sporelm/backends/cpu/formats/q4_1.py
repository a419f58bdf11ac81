"""Q4_1 panels: a group is one block of 32 columns.

[lanes f16 scales][lanes f16 minima][4 vectors of nibbles]: in vector j a lane holds its row's dword j of the file's
nibbles, so the low ones are columns 4j..4j+3 and the high ones 16+4j..; five bits a weight, as in the file.
"""

from sporelm.backends.cpu.formats.panels import Block, BlockPanels, byte_values, gather
from sporelm.backends.cpu.jit import Builder, Val, i16, i32, vec

NIBBLES = 0x0F0F0F0F
FILE_BLOCK = 20  # f16 scale, f16 minimum, 16 bytes of nibbles


class Q4_1Panels(BlockPanels):
    name = "Q4_1"
    k_step = 32
    has_offset = True

    @property
    def group_bytes(self) -> int:
        return 20 * self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        start = group * FILE_BLOCK
        k.store(gather(k, i16, rows, present, start), target)
        k.store(gather(k, i16, rows, present, start + 2), target, 2 * self.lanes)
        for word in range(4):
            k.store(gather(k, i32, rows, present, start + (4 + 4 * word)), target, (4 + 4 * word) * self.lanes)

    def block(self, k: Builder, group: Val, index: int) -> Block:
        halves = vec(i16, self.lanes)

        def word(number: int) -> Val:
            nibbles = k.load(k.vi, group, (4 + 4 * (number % 4)) * self.lanes)
            return (nibbles if number < 4 else nibbles >> 4) & NIBBLES

        def factor(offset: int) -> Val:
            return k.target.from_half(k, k.load(halves, group, offset))

        return Block(word, lambda: factor(0), lambda: factor(2 * self.lanes))

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        words = [k.load(i32, start, lane * 4 + (4 + 4 * word) * self.lanes) for word in range(4)]
        bytes_ = byte_values(k, [w & NIBBLES for w in words] + [(w >> 4) & NIBBLES for w in words], signed=False)
        scale = k.splat(k.target.from_half(k, k.load(i16, start, lane * 2)))
        offset = k.splat(k.target.from_half(k, k.load(i16, start, lane * 2 + 2 * self.lanes)))
        return [value * scale + offset for value in bytes_]
