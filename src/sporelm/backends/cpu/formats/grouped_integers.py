"""Integers of four or eight bits in groups of 32, 64 or 128 columns that share a scale: UINT4, UINT8 and INT8.

A group of a panel is a group of the format: [lanes f16 scales][lanes i16 zero points] or [lanes f32 scales], then for
each 32 columns four vectors of nibbles, as in Q4_0's panels, or eight vectors of bytes, as in Q8_0's. The number of
bits per weight is that of the file.
"""

from sporelm.backends.cpu.formats.nibble_panels import NIBBLES
from sporelm.backends.cpu.formats.panels import Block, BlockPanels, byte_values, gather
from sporelm.backends.cpu.formats.q8_0 import ADD_128
from sporelm.backends.cpu.jit import Builder, Val, f32, i16, i32, vec
from sporelm.backends.cpu.targets.cpu_target import SIGNED, CpuTarget

HEAD = 4  # bytes of a block before its integers: a float16 and an int16, or a float32


class GroupedPanels(BlockPanels):
    """Panels of integers of `bits`. `has_offset`: they have zero points."""

    bits = 4

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self.k_step = 32 * self.blocks
        self.largest = 15 if self.bits == 4 else 255 if self.zero else SIGNED

    @property
    def zero(self) -> int:
        return self.target.signed_zero if self.bits == 8 else 0

    @property
    def vectors(self) -> int:
        """Return the number of vectors of integers for 32 columns."""
        return self.bits

    @property
    def group_bytes(self) -> int:
        return (HEAD + 4 * self.vectors * self.blocks) * self.lanes

    def _at(self, index: int, vector: int) -> int:
        """Return the offset of a vector of integers of block `index` in a group."""
        return (HEAD + 4 * (self.vectors * index + vector)) * self.lanes

    def _flip_sign_bits(self, words: Val) -> Val:
        """Convert signed bytes to those of the panel, or back."""
        return words ^ ADD_128 if self.zero else words

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        start = group * (HEAD + 4 * self.vectors * self.blocks)
        if self.has_offset:
            k.store(gather(k, i16, rows, present, start), target)
            k.store(gather(k, i16, rows, present, start + 2), target, 2 * self.lanes)
        else:
            k.store(gather(k, f32, rows, present, start), target)
        with k.range(self.vectors * self.blocks) as vector:
            values = gather(k, i32, rows, present, start + HEAD + vector * 4)
            k.store(self._flip_sign_bits(values), target, (vector + 1) * (4 * self.lanes))

    def _word(self, stored: Val, number: int) -> Val:
        """Return word `number` of 32 columns, given a vector of them, as the target multiplies it."""
        if self.bits == 8:
            return stored
        return (stored if number < 4 else stored >> 4) & NIBBLES

    def block(self, k: Builder, group: Val, index: int) -> Block:
        halves = vec(i16, self.lanes)

        def scale(part: int = 0) -> Val:
            if self.has_offset:
                return k.target.from_half(k, k.load(halves, group))
            return k.load(k.vf, group)

        def offset() -> Val:
            return -(scale() * k.load(halves, group, 2 * self.lanes).sext(k.vi).to_float())

        def word(number: int) -> Val:
            return self._word(k.load(k.vi, group, self._at(index, number % self.vectors)), number)

        return Block(word, scale, offset if self.has_offset else None)

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        if self.has_offset:
            scale = k.target.from_half(k, k.load(i16, start, lane * 2))
            zero = k.load(i16, start, lane * 2 + 2 * self.lanes).sext(i32).to_float()
        else:
            scale, zero = k.load(f32, start, lane * 4), k.const(f32, 0.0)
        values: list[Val] = []
        for index in range(self.blocks):
            places = [self._at(index, vector) for vector in range(self.vectors)]
            held = [self._flip_sign_bits(k.load(i32, start, lane * 4 + place)) for place in places]
            words = [self._word(held[number % self.vectors], number) for number in range(8)]
            bytes_ = byte_values(k, words, signed=self.bits == 8)
            values += [(value - k.splat(zero)) * k.splat(scale) for value in bytes_]
        return values
