"""The 32-value blocks of four and five bits: Q4_0, Q4_1, Q5_0 and Q5_1 differ in offset, zero and fifth bit.

A group is one block: [lanes f16 scales]([lanes f16 minima])([vector of fifth bits])[4 vectors of nibbles]. In vector j
a lane holds its row's dword j of the file's nibbles, so the low ones are columns 4j..4j+3 and the high ones 16+4j..; of
the fifth bits, bit 8b + w of a lane belongs to byte b of word w. As many bits a weight as in the file.
"""

from sporelm.backends.cpu.formats.panels import Block, BlockPanels, byte_values, gather
from sporelm.backends.cpu.jit import Builder, Val, i16, i32, vec

NIBBLES = 0x0F0F0F0F
FIFTH = 0x10101010


class NibblePanels(BlockPanels):
    """What such a format says of itself: `has_offset`, `fifth` and `middle`, the number that stands for 0."""

    k_step = 32
    fifth = False
    middle = 0

    def __init__(self, target: object) -> None:
        super().__init__(target)  # type: ignore[arg-type]
        self.largest = 31 if self.fifth else 15
        self._bits = (4 if self.has_offset else 2) * self.lanes  # where the fifth bits stand in a panel's group
        self._nibbles = self._bits + (4 * self.lanes if self.fifth else 0)

    @property
    def zero(self) -> int:
        return self.middle

    @property
    def group_bytes(self) -> int:
        return self._nibbles + 16 * self.lanes

    @property
    def file_block(self) -> int:
        """Bytes of a block in the file: halves, fifth bits, nibbles."""
        return self.group_bytes // self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        start = group * self.file_block
        k.store(gather(k, i16, rows, present, start), target)
        if self.has_offset:
            k.store(gather(k, i16, rows, present, start + 2), target, 2 * self.lanes)
        if self.fifth:
            bits = gather(k, i32, rows, present, start + self._bits // self.lanes)
            k.store(_by_byte(k, bits), target, self._bits)
        for word in range(4):
            at = self._nibbles + 4 * word * self.lanes
            k.store(gather(k, i32, rows, present, start + at // self.lanes), target, at)

    def word(self, k: Builder, load_nibbles: Val, fifth: Val | None, number: int) -> Val:
        """Word `number` of a block from its dword of nibbles and its dword of fifth bits."""
        low = (load_nibbles if number < 4 else load_nibbles >> 4) & NIBBLES
        if fifth is None:
            return low
        moved = fifth << (4 - number) if number < 4 else fifth >> (number - 4) if number > 4 else fifth
        return low | (moved & FIFTH)

    def block(self, k: Builder, group: Val, index: int) -> Block:
        halves = vec(i16, self.lanes)

        def word(number: int) -> Val:
            nibbles = k.load(k.vi, group, self._nibbles + 4 * (number % 4) * self.lanes)
            return self.word(k, nibbles, k.load(k.vi, group, self._bits) if self.fifth else None, number)

        def factor(offset: int) -> Val:
            return k.target.from_half(k, k.load(halves, group, offset))

        return Block(word, lambda: factor(0), (lambda: factor(2 * self.lanes)) if self.has_offset else None)

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        nibbles = [k.load(i32, start, lane * 4 + (self._nibbles + 4 * word * self.lanes)) for word in range(4)]
        fifth = k.load(i32, start, lane * 4 + self._bits) if self.fifth else None
        words = [self.word(k, nibbles[number % 4], fifth, number) for number in range(8)]
        scale = k.splat(k.target.from_half(k, k.load(i16, start, lane * 2)))
        values = byte_values(k, words, signed=False)
        if not self.has_offset:
            return [(value - float(self.middle)) * scale for value in values]
        offset = k.splat(k.target.from_half(k, k.load(i16, start, lane * 2 + 2 * self.lanes)))
        return [value * scale + offset for value in values]


def _by_byte(k: Builder, bits: Val) -> Val:
    """Bit 4w + b of each lane, as files have the fifth bit of value 4w + b, moved to 8b + w."""
    moved = k.const(bits.type, 0)
    for word in range(8):
        for byte in range(4):
            bit = (bits >> (4 * word + byte)) & 1
            moved = moved | (bit << (8 * byte + word))
    return moved
