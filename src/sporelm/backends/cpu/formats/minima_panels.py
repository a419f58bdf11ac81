"""Q4_K and Q5_K: super-blocks of eight runs of 32 values, each with a 6-bit scale and a 6-bit minimum.

A group is a super-block: [lanes f16 scales][lanes f16 of minima][8 x lanes u8 scales][4 x lanes pairs of u8 minima] ([8
vectors of fifth bits])[32 vectors of nibbles]. In vector j a lane holds its row's dword j of the file's nibbles: eight
dwords serve two runs, the low nibbles the even run. Of the fifth bits, bit r of byte 4w + b belongs to byte b of word w
of run r, as in the file. For 16 rows this takes 64 bytes more than the file's blocks: scales and minima are bytes.
"""

from sporelm.backends.cpu.formats.nibble_panels import FIFTH, NIBBLES
from sporelm.backends.cpu.formats.panels import SuperBlock, SuperPanels, byte_values, gather, shift
from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32, vec
from sporelm.backends.cpu.targets import CpuTarget

FILE_SCALES, FILE_BITS = 4, 16  # offsets in a block of the file of the 12 bytes of scales, and of the data after them


class MinimaPanels(SuperPanels):
    """Q4_K panels, and with a fifth bit Q5_K panels."""

    fifth = False
    has_minima = True

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self.largest = 31 if self.fifth else 15
        self._scales, self._pairs, self._bits = (n * self.lanes for n in (4, 12, 20))
        self._nibbles = self._bits + (32 * self.lanes if self.fifth else 0)

    @property
    def group_bytes(self) -> int:
        return self._nibbles + 128 * self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        start = group * (176 if self.fifth else 144)
        for half in range(2):
            k.store(gather(k, i16, rows, present, start + 2 * half), target, 2 * self.lanes * half)
        scales, minima = _six_bits([gather(k, i32, rows, present, start + (FILE_SCALES + 4 * n)) for n in range(3)])
        for run, scale in enumerate(scales):
            k.store(scale.trunc(vec(i8, self.lanes)), target, self._scales + run * self.lanes)
        for pair in range(4):
            both = minima[2 * pair] | (minima[2 * pair + 1] << 8)
            k.store(both.trunc(vec(i16, self.lanes)), target, self._pairs + 2 * pair * self.lanes)
        for word in range(40 if self.fifth else 32):
            value = gather(k, i32, rows, present, start + (FILE_BITS + 4 * word))
            k.store(value, target, self._bits + 4 * word * self.lanes)

    def word(self, nibbles: Val, fifth: Val | None, run: int) -> Val:
        """Return a word of a run, given its dword of nibbles and its dword of fifth bits."""
        low = (nibbles if run % 2 == 0 else nibbles >> 4) & NIBBLES
        return low if fifth is None else low | (shift(fifth, 4 - run) & FIFTH)

    def super_block(self, k: Builder, group: Val) -> SuperBlock:
        bytes_, pairs, halves = vec(i8, self.lanes), vec(i8, 2 * self.lanes), vec(i16, self.lanes)
        vector = 4 * self.lanes

        def word(number: int) -> Val:
            run, w = divmod(number, 8)
            nibbles = k.load(k.vi, group, self._nibbles + (8 * (run // 2) + w) * vector)
            return self.word(nibbles, k.load(k.vi, group, self._bits + w * vector) if self.fifth else None, run)

        def pair(number: int) -> Val:
            both = k.load(pairs, group, self._pairs + 2 * number * self.lanes)
            return both.zext(vec(i16, 2 * self.lanes)).bits(k.vi)

        return SuperBlock(
            word,
            lambda run: k.load(bytes_, group, self._scales + run * self.lanes).zext(k.vi),
            pair,
            lambda: k.target.from_half(k, k.load(halves, group)),
            lambda: -k.target.from_half(k, k.load(halves, group, 2 * self.lanes)),
        )

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        scale, minimum = (k.target.from_half(k, k.load(i16, start, lane * 2 + 2 * self.lanes * n)) for n in range(2))
        nibbles = [k.load(i32, start, lane * 4 + (self._nibbles + 4 * n * self.lanes)) for n in range(32)]
        fifths = [k.load(i32, start, lane * 4 + (self._bits + 4 * n * self.lanes)) for n in range(8)]
        values = []
        for run in range(8):
            words = [self.word(nibbles[8 * (run // 2) + w], fifths[w] if self.fifth else None, run) for w in range(8)]
            factor = scale * k.load(i8, start, lane + (self._scales + run * self.lanes)).zext(i32).to_float()
            at = lane * 2 + (self._pairs + 2 * (run // 2) * self.lanes + run % 2)
            offset = minimum * k.load(i8, start, at).zext(i32).to_float()
            values += [v * k.splat(factor) - k.splat(offset) for v in byte_values(k, words, signed=False)]
        return values


def _six_bits(dwords: list[Val]) -> tuple[list[Val], list[Val]]:
    """Return eight scales and eight minima of six bits out of the file's twelve bytes (ggml's get_scale_min_k4)."""
    first, second, third = dwords
    scales = [(first >> (8 * n)) & 63 for n in range(4)]
    minima = [(second >> (8 * n)) & 63 for n in range(4)]
    for n in range(4):
        scales.append(((third >> (8 * n)) & 15) | (((first >> (8 * n + 6)) & 3) << 4))
        minima.append(((third >> (8 * n + 4)) & 15) | (((second >> (8 * n + 6)) & 3) << 4))
    return scales, minima
