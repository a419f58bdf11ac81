"""Blocks of 32 values of four and five bits. Q4_0, Q4_1, Q5_0 and Q5_1 differ in offset, zero and fifth bit.

With an offset a group is one block, else two, so that vectors are aligned; an odd last block is padded with zeros. It
has [f16 scales]([f16 minima])([fifth bits])[4 vectors of nibbles], each part for all blocks. In vector j a lane holds
its row's dword j of the file's nibbles, so that the low nibbles are columns 4j..4j+3 and the high ones 16+4j..; of the
fifth bits, bit 8b + w of a lane belongs to byte b of word w. The number of bits per weight is that of the file.
"""

from sporelm.backends.cpu.formats.panels import Block, BlockPanels, byte_values, gather, shift
from sporelm.backends.cpu.jit import Builder, Val, i16, i32, vec
from sporelm.backends.cpu.targets import CpuTarget

NIBBLES = 0x0F0F0F0F
FIFTH = 0x10101010


class NibblePanels(BlockPanels):
    """Panels with `has_offset`, `fifth` and `middle`, the number that stands for 0."""

    fifth = False
    middle = 0

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self.blocks = 1 if self.has_offset else 2
        self.k_step = 32 * self.blocks
        self.largest = 31 if self.fifth else 15
        # bytes of a row's block in the file before its fifth bits and its nibbles; a panel's group keeps that order
        self._bits = 4 if self.has_offset else 2
        self._nibbles = self._bits + (4 if self.fifth else 0)

    @property
    def zero(self) -> int:
        return self.middle

    @property
    def file_block(self) -> int:
        """Return the bytes of a block in the file: halves, fifth bits, nibbles."""
        return self._nibbles + 16

    @property
    def group_bytes(self) -> int:
        return self.file_block * self.blocks * self.lanes

    def _at(self, offset: int, index: int) -> int:
        """Return the offset in a group of the data at `offset` in block `index` of the file."""
        parts = ((self._nibbles, 16), (self._bits, 4), (0, self._bits))  # first byte, and bytes of a block
        start, nbytes = next(part for part in parts if offset >= part[0])
        return (start * self.blocks + nbytes * index + offset - start) * self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        for index in range(self.blocks):
            there, start = self.block_of_rows(k, present, group, index, width, self.file_block)
            for half in range(0, self._bits, 2):
                k.store(gather(k, i16, rows, there, start + half), target, self._at(half, index))
            if self.fifth:
                bits = gather(k, i32, rows, there, start + self._bits)
                k.store(_by_byte(k, bits), target, self._at(self._bits, index))
            for word in range(self._nibbles, self.file_block, 4):
                k.store(gather(k, i32, rows, there, start + word), target, self._at(word, index))

    def word(self, nibbles: Val, fifth: Val | None, number: int) -> Val:
        """Return word `number` of a block, given its dword of nibbles and its dword of fifth bits."""
        low = (nibbles if number < 4 else nibbles >> 4) & NIBBLES
        return low if fifth is None else low | (shift(fifth, 4 - number) & FIFTH)

    def block(self, k: Builder, group: Val, index: int) -> Block:
        def word(number: int) -> Val:
            nibbles = k.load(k.vi, group, self._at(self._nibbles + 4 * (number % 4), index))
            fifth = k.load(k.vi, group, self._at(self._bits, index)) if self.fifth else None
            return self.word(nibbles, fifth, number)

        def factor(offset: int) -> Val:
            return k.target.from_half(k, k.load(vec(i16, self.lanes), group, self._at(offset, index)))

        return Block(word, lambda part: factor(0), (lambda: factor(2)) if self.has_offset else None)

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        values: list[Val] = []
        for index in range(self.blocks):
            places = [self._at(at, index) for at in range(self._nibbles, self.file_block, 4)]
            nibbles = [k.load(i32, start, lane * 4 + place) for place in places]
            fifth = k.load(i32, start, lane * 4 + self._at(self._bits, index)) if self.fifth else None
            words = [self.word(nibbles[number % 4], fifth, number) for number in range(8)]
            scale = k.splat(k.target.from_half(k, k.load(i16, start, lane * 2 + self._at(0, index))))
            bytes_ = byte_values(k, words, signed=False)
            if self.has_offset:
                offset = k.splat(k.target.from_half(k, k.load(i16, start, lane * 2 + self._at(2, index))))
                values += [value * scale + offset for value in bytes_]
            else:
                values += [(value - float(self.middle)) * scale for value in bytes_]
        return values


def _by_byte(k: Builder, bits: Val) -> Val:
    """Move bit 4w + b of each lane, the file's fifth bit of value 4w + b, to 8b + w."""
    moved = k.const(bits.type, 0)
    for word in range(8):
        for byte in range(4):
            bit = (bits >> (4 * word + byte)) & 1
            moved = moved | (bit << (8 * byte + word))
    return moved
