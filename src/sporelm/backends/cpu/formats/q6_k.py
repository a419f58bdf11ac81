"""Q6_K panels: super-blocks of sixteen runs of 16 six-bit values around 32, each run with an int8 scale.

A group is a super-block: [lanes f16 scales][8 x lanes pairs of int8 scales][16 vectors of high bits][32 vectors of
nibbles], the dwords of each row as in the file: a half of 128 values has 16 dwords of nibbles, the low nibbles for its
first 64 values, and 8 dwords of high bits, two per value. The number of bits per weight is that of the file.
"""

from sporelm.backends.cpu.formats.nibble_panels import NIBBLES
from sporelm.backends.cpu.formats.panels import SuperBlock, SuperPanels, byte_values, gather, shift
from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32, vec
from sporelm.backends.cpu.targets import CpuTarget

HIGH = 0x30303030
FILE_HIGH, FILE_SCALES, FILE_FACTOR, FILE_BLOCK = 128, 192, 208, 210  # offsets in a block of the file, and its end


class Q6_KPanels(SuperPanels):
    name = "Q6_K"
    largest = 63
    runs = 16
    middle = 32

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self._pairs, self._high, self._nibbles = (n * self.lanes for n in (2, 18, 82))

    @property
    def group_bytes(self) -> int:
        return 210 * self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        start = group * FILE_BLOCK
        k.store(gather(k, i16, rows, present, start + FILE_FACTOR), target)
        for pair in range(8):
            k.store(
                gather(k, i16, rows, present, start + (FILE_SCALES + 2 * pair)), target, (2 + 2 * pair) * self.lanes
            )
        for word in range(16):
            at = self._high + 4 * word * self.lanes
            k.store(gather(k, i32, rows, present, start + (FILE_HIGH + 4 * word)), target, at)
        for word in range(32):
            at = self._nibbles + 4 * word * self.lanes
            k.store(gather(k, i32, rows, present, start + 4 * word), target, at)

    def super_block(self, k: Builder, group: Val) -> SuperBlock:
        def pair(number: int) -> Val:
            both = k.load(vec(i8, 2 * self.lanes), group, self._pairs + 2 * number * self.lanes)
            return both.sext(vec(i16, 2 * self.lanes)).bits(k.vi)

        def scale(run: int) -> Val:
            both = pair(run // 2)
            return (both << 16 if run % 2 == 0 else both).arithmetic_shift(16)

        def word(number: int) -> Val:
            nibbles, high, quarter = _places(number)
            low_at, high_at = self._at(nibbles, high)
            return _word(k.load(k.vi, group, low_at), k.load(k.vi, group, high_at), quarter)

        return SuperBlock(word, scale, pair, lambda: k.target.from_half(k, k.load(vec(i16, self.lanes), group)))

    def _at(self, nibbles: int, high: int) -> tuple[int, int]:
        return self._nibbles + 4 * nibbles * self.lanes, self._high + 4 * high * self.lanes

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        factor = k.target.from_half(k, k.load(i16, start, lane * 2))
        nibbles = [k.load(i32, start, lane * 4 + self._at(n, 0)[0]) for n in range(32)]
        highs = [k.load(i32, start, lane * 4 + self._at(0, n)[1]) for n in range(16)]
        values = []
        for first in range(0, 64, 8):
            places = [_places(number) for number in range(first, first + 8)]
            words = [_word(nibbles[low], highs[high], quarter) for low, high, quarter in places]
            scales = []
            for run in (first // 4, first // 4 + 1):
                at = lane * 2 + (self._pairs + 2 * (run // 2) * self.lanes + run % 2)
                scales.append(factor * k.load(i8, start, at).sext(i32).to_float())
            for n, value in enumerate(byte_values(k, words, signed=False)):
                values.append((value - 32.0) * k.splat(scales[n * self.lanes // 16]))
        return values


def _places(number: int) -> tuple[int, int, int]:
    """Return for word 0..63 its dword of nibbles, its dword of high bits, and its quarter of a half (ggml's
    block_q6_K)."""
    half, rest = divmod(number, 32)
    quarter, w = divmod(rest, 8)
    return 16 * half + 8 * (quarter % 2) + w, 8 * half + w, quarter


def _word(nibbles: Val, high: Val, quarter: int) -> Val:
    low = (nibbles if quarter < 2 else nibbles >> 4) & NIBBLES
    return low | (shift(high, 4 - 2 * quarter) & HIGH)
