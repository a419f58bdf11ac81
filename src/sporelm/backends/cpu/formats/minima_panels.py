"""Q4_K and Q5_K: super-blocks of eight runs of 32 values, each with a 6-bit scale and a 6-bit minimum.

A group is a super-block: [lanes f16 scales][lanes f16 of minima][8 x lanes u8 scales][4 x lanes pairs of u8 minima],
then the values. For 16 rows this takes 64 bytes more than the file's blocks: scales and minima are bytes.

Values of four bits are [32 vectors of nibbles]. In vector j a lane holds its row's dword j of the file's nibbles: eight
dwords serve two runs, the low nibbles the even run. Values of five bits are [8 x 5 vectors]. Five vectors hold a run's
eight words: words 3 to 7 are their low five bits, and the bits of words 0 to 2 are the upper three of each (`PIECES`).
So a run takes fewer instructions to unpack than the file's nibbles and fifth bits, and memory is read in order, once.
"""

import operator
from collections.abc import Callable
from functools import partial, reduce

from sporelm.backends.cpu.formats.nibble_panels import FIFTH, NIBBLES
from sporelm.backends.cpu.formats.panels import SuperBlock, SuperPanels, byte_values, gather, shift
from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32, vec
from sporelm.backends.cpu.targets import CpuTarget

FIVE_BITS = 0x1F1F1F1F
ONES = 0x01010101
# Of words 0 to 2 of a run of five bits, the vectors that hold their bits: (vector, mask of the bits, shift to the left)
PIECES = (((0, 0x1C, 3), (3, 0x03, 6)), ((1, 0x1C, 3), (4, 0x03, 6)), ((2, 0x1C, 3), (3, 0x02, 4), (4, 0x01, 5)))
FILE_SCALES, FILE_BITS = 4, 16  # offsets in a block of the file of the 12 bytes of scales, and of the data after them


class MinimaPanels(SuperPanels):
    """Q4_K panels, and with a fifth bit Q5_K panels."""

    fifth = False
    has_minima = True

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self.largest = 31 if self.fifth else 15
        self._scales, self._pairs, self._values = (n * self.lanes for n in (4, 12, 20))

    @property
    def group_bytes(self) -> int:
        return (180 if self.fifth else 148) * self.lanes

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
        dwords = [gather(k, i32, rows, present, start + (FILE_BITS + 4 * n)) for n in range(40 if self.fifth else 32)]
        if self.fifth:
            dwords = [vector for run in range(8) for vector in _join_run(_file_words(dwords, run))]
        for number, vector in enumerate(dwords):
            k.store(vector, target, self._values + 4 * number * self.lanes)

    def _run_words(self, load: Callable[[int], Val], run: int) -> Callable[[int], Val]:
        """Return the words of a run, given the values' dwords."""
        if not self.fifth:
            return lambda w: (load(8 * (run // 2) + w) if run % 2 == 0 else load(8 * (run // 2) + w) >> 4) & NIBBLES
        parts = [load(5 * run + part) for part in range(5)]
        return partial(_five_bit_word, parts)

    def super_block(self, k: Builder, group: Val) -> SuperBlock:
        bytes_, pairs, halves = vec(i8, self.lanes), vec(i8, 2 * self.lanes), vec(i16, self.lanes)
        runs: dict[int, Callable[[int], Val]] = {}

        def dword(number: int) -> Val:
            return k.load(k.vi, group, self._values + 4 * number * self.lanes)

        def word(number: int) -> Val:
            run, w = divmod(number, 8)
            if run not in runs:
                runs[run] = self._run_words(dword, run)
            return runs[run](w)

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

        def dword(number: int) -> Val:
            return k.load(i32, start, lane * 4 + (self._values + 4 * number * self.lanes))

        values = []
        for run in range(8):
            run_word = self._run_words(dword, run)
            words = [run_word(w) for w in range(8)]
            factor = scale * k.load(i8, start, lane + (self._scales + run * self.lanes)).zext(i32).to_float()
            at = lane * 2 + (self._pairs + 2 * (run // 2) * self.lanes + run % 2)
            offset = minimum * k.load(i8, start, at).zext(i32).to_float()
            values += [v * k.splat(factor) - k.splat(offset) for v in byte_values(k, words, signed=False)]
        return values


def _file_words(dwords: list[Val], run: int) -> list[Val]:
    """Return a run's words of five bits, given the file's dwords: eight of fifth bits, then 32 of nibbles. Bit r of a
    byte of fifth bits is run r's."""
    nibbles = dwords[8 + 8 * (run // 2) :]
    low = [(nibbles[w] if run % 2 == 0 else nibbles[w] >> 4) & NIBBLES for w in range(8)]
    return [low[w] | (shift(dwords[w], 4 - run) & FIFTH) for w in range(8)]


def _join_run(words: list[Val]) -> list[Val]:
    """Return the five vectors of a run's eight words."""
    vectors = words[3:]
    for word, pieces in zip(words, PIECES, strict=False):
        for number, mask, left in pieces:
            vectors[number] = vectors[number] | ((word & (mask * ONES)) << left)
    return vectors


def _five_bit_word(vectors: list[Val], number: int) -> Val:
    """Return word 0..7 of a run, given its five vectors."""
    if number > 2:
        return vectors[number - 3] & FIVE_BITS
    pieces = [(vectors[part] >> right) & (mask * ONES) for part, mask, right in PIECES[number]]
    return reduce(operator.or_, pieces)


def _six_bits(dwords: list[Val]) -> tuple[list[Val], list[Val]]:
    """Return eight scales and eight minima of six bits out of the file's twelve bytes (ggml's get_scale_min_k4)."""
    first, second, third = dwords
    scales = [(first >> (8 * n)) & 63 for n in range(4)]
    minima = [(second >> (8 * n)) & 63 for n in range(4)]
    for n in range(4):
        scales.append(((third >> (8 * n)) & 15) | (((first >> (8 * n + 6)) & 3) << 4))
        minima.append(((third >> (8 * n + 4)) & 15) | (((second >> (8 * n + 6)) & 3) << 4))
    return scales, minima
