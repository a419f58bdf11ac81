"""Blocks of one or two bits per weight and an f16 scale: Q1_0 and Q2_0.

A group is a block of the file: [lanes f16 scales][for each 32 values as many vectors as a value has bits]. In vector j
bits 8b + at of a lane, and with two bits the next higher one, belong to byte b of a word; the words of a vector are
stacked. The number of bits per weight is that of the file.
"""

from sporelm.backends.cpu.formats.panels import Block, BlockPanels, byte_values, gather, shift
from sporelm.backends.cpu.jit import Builder, Val, i16, i32, vec
from sporelm.backends.cpu.targets import CpuTarget

BYTES = 0x01010101


class BitPanels(BlockPanels):
    """Panels with `bits` per value. `place` is the bit of a byte at which values are multiplied."""

    bits = 1
    place = 0

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self.k_step = 32 * self.blocks
        self.largest = (2**self.bits - 1) << self.place

    @property
    def zero(self) -> int:
        return 1

    @property
    def group_bytes(self) -> int:
        return (2 + 4 * self.bits * self.blocks) * self.lanes

    def _at(self, index: int, vector: int) -> int:
        """Return the offset of a vector of bits of block `index` in a group."""
        return (2 + 4 * (self.bits * index + vector)) * self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        start = group * (2 + 4 * self.bits * self.blocks)
        k.store(gather(k, i16, rows, present, start), target)
        for index in range(self.blocks):
            for vector in range(self.bits):
                bits = gather(k, i32, rows, present, start + (2 + 4 * (self.bits * index + vector)))
                k.store(self._by_byte(k, bits), target, self._at(index, vector))

    def _by_byte(self, k: Builder, bits: Val) -> Val:
        """Spread the values of a dword of the file, four of a word side by side, to the bytes of a word."""
        moved, mask = k.const(bits.type, 0), 2**self.bits - 1
        words = 8 // self.bits
        for word in range(words):
            for byte in range(4):
                value = (bits >> (self.bits * (4 * word + byte))) & mask
                moved = moved | (value << (8 * byte + self.bits * word))
        return moved

    def _word(self, vectors: list[Val], number: int) -> Val:
        """Return word `number` of a block, given its vectors of bits."""
        vector, word = divmod(number, 8 // self.bits)
        return shift(vectors[vector], self.place - self.bits * word) & (BYTES * self.largest)

    def block(self, k: Builder, group: Val, index: int) -> Block:
        vectors = [k.load(k.vi, group, self._at(index, vector)) for vector in range(self.bits)]
        return Block(
            lambda number: self._word(vectors, number),
            lambda part: k.target.from_half(k, k.load(vec(i16, self.lanes), group)),
        )

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        scale = k.splat(k.target.from_half(k, k.load(i16, start, lane * 2)))
        values: list[Val] = []
        for index in range(self.blocks):
            vectors = [k.load(i32, start, lane * 4 + self._at(index, vector)) for vector in range(self.bits)]
            words = [self._word(vectors, number) for number in range(8)]
            values += [(value - 1.0) * scale for value in byte_values(k, words, signed=False)]
        return values
