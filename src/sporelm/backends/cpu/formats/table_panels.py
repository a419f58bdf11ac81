"""32-value blocks of four-bit codes of uneven levels: IQ4_NL, MXFP4 and NVFP4 differ in levels and scales.

A group has [scales][4 vectors of nibbles], each part for all of its blocks. In vector j a lane holds its row's dword j
of the file's nibbles. Codes are converted to bytes when they are read. The number of bits per weight is that of the
file.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.cpu.formats.nibble_panels import NIBBLES
from sporelm.backends.cpu.formats.panels import Block, BlockPanels, byte_values, gather
from sporelm.backends.cpu.jit import Builder, Val, i16, i32, nbytes, vec
from sporelm.backends.cpu.targets import CpuTarget

SPLIT_32 = tuple((word % 4, 4 * (word // 4)) for word in range(8))  # low nibbles first, then high ones
SPLIT_16 = tuple((2 * (word // 4) + word % 2, word % 4 // 2 * 4) for word in range(8))  # the same by half blocks


class TablePanels(BlockPanels):
    """Panels with `levels`. Subclasses give the layout of scales and convert them to f32."""

    levels: NDArray[np.float32]  # [16], integers
    element: Any = i16  # a scale in memory
    order = SPLIT_32  # the dword of nibbles of each word, and the shift to it

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self.k_step = 32 * self.blocks
        self.table = [int(level) + self.zero for level in self.levels]
        self.largest = self.largest or max(self.table)
        self._scale_bytes = nbytes(self.element) * self.parts  # of a block
        self._file_nibbles = self._scale_bytes * self.file_blocks

    def factor(self, k: Builder, stored: Val) -> Val:
        """Convert a stored scale, or a vector of them, to f32."""
        return k.target.from_half(k, stored)

    def encode_scales(self, k: Builder, stored: Val) -> Val:
        """Return a vector of the file's scales as panels store them."""
        return stored

    @property
    def group_bytes(self) -> int:
        return (self._scale_bytes + 16) * self.blocks * self.lanes

    def _scale_at(self, index: int, part: int) -> int:
        """Return the offset of the scales of a part of block `index` in a group."""
        return (self._scale_bytes * index + nbytes(self.element) * part) * self.lanes

    def _at(self, index: int, dword: int) -> int:
        """Return the offset of a dword of nibbles of block `index` in a group."""
        return (self._scale_bytes * self.blocks + 16 * index + 4 * dword) * self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        file_block = self._file_nibbles + 16 * self.file_blocks
        for index in range(self.blocks):
            there, start = self.block_of_rows(k, present, group, index, width, file_block)
            within = index % self.file_blocks
            for part in range(self.parts):
                at = self._scale_bytes * within + nbytes(self.element) * part
                scales = gather(k, self.element, rows, there, start + at)
                k.store(self.encode_scales(k, scales), target, self._scale_at(index, part))
            for dword in range(4):
                at = self._file_nibbles + 16 * within + 4 * dword
                k.store(gather(k, i32, rows, there, start + at), target, self._at(index, dword))

    def _codes(self, nibbles: Val, shift: int) -> Val:
        return (nibbles >> shift if shift else nibbles) & NIBBLES

    def block(self, k: Builder, group: Val, index: int) -> Block:
        def word(number: int) -> Val:
            dword, shift = self.order[number]
            codes = self._codes(k.load(k.vi, group, self._at(index, dword)), shift)
            return k.target.lookup(k, self.table, codes)

        def scale(part: int) -> Val:
            return self.factor(k, k.load(vec(self.element, self.lanes), group, self._scale_at(index, part)))

        return Block(word, scale)

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        levels = [int(level) for level in self.levels]
        values: list[Val] = []
        for index in range(self.blocks):
            nibbles = [k.load(i32, start, lane * 4 + self._at(index, dword)) for dword in range(4)]
            codes = [self._codes(nibbles[dword], shift) for dword, shift in self.order]
            places = [lane * nbytes(self.element) + self._scale_at(index, part) for part in range(self.parts)]
            scales = [k.splat(self.factor(k, k.load(self.element, start, place))) for place in places]
            found = byte_values(k, codes, signed=True, table=levels)
            values += [value * scales[n * self.parts // len(found)] for n, value in enumerate(found)]
        return values
