"""Q6_K panels: super-blocks of sixteen runs of 16 six-bit values around 32, each run with an int8 scale.

A group is a super-block: [16 x 3 vectors of values][8 x lanes pairs of int8 scales][lanes f16 scales], padded by 2
bytes a lane so that no vector crosses a cache line (1 % more than the file's bits per weight). Three vectors hold a
run's four words: words 1 to 3 are their low six bits, and the upper two bits of each are word 0. So a run takes fewer
instructions to unpack than the file's nibbles and pairs of bits, and memory is read in order, once.
"""

from sporelm.backends.cpu.formats.nibble_panels import NIBBLES
from sporelm.backends.cpu.formats.panels import SuperBlock, SuperPanels, byte_values, gather, shift
from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32, vec
from sporelm.backends.cpu.targets import CpuTarget

HIGH = 0x30303030
SIX_BITS = 0x3F3F3F3F
UPPER_ENDS = -0x3F3F3F40  # 0xC0C0C0C0 as a signed i32
FILE_HIGH, FILE_SCALES, FILE_FACTOR, FILE_BLOCK = 128, 192, 208, 210  # offsets in a block of the file, and its end


class Q6_KPanels(SuperPanels):
    name = "Q6_K"
    largest = 63
    runs = 16
    middle = 32

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self._pairs, self._factor = (n * self.lanes for n in (192, 208))

    @property
    def group_bytes(self) -> int:
        return 212 * self.lanes

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        start = group * FILE_BLOCK
        k.store(gather(k, i16, rows, present, start + FILE_FACTOR), target, self._factor)
        for pair in range(8):
            at = self._pairs + 2 * pair * self.lanes
            k.store(gather(k, i16, rows, present, start + (FILE_SCALES + 2 * pair)), target, at)
        for half in range(2):
            nibbles = [gather(k, i32, rows, present, start + (64 * half + 4 * n)) for n in range(16)]
            highs = [gather(k, i32, rows, present, start + (FILE_HIGH + 32 * half + 4 * n)) for n in range(8)]
            for run in range(8):
                vectors = _join_run([_file_word(nibbles, highs, 4 * run + n) for n in range(4)])
                for number, vector in enumerate(vectors):
                    k.store(vector, target, 4 * (3 * (8 * half + run) + number) * self.lanes)

    def super_block(self, k: Builder, group: Val) -> SuperBlock:
        runs: dict[int, list[Val]] = {}

        def pair(number: int) -> Val:
            both = k.load(vec(i8, 2 * self.lanes), group, self._pairs + 2 * number * self.lanes)
            return both.sext(vec(i16, 2 * self.lanes)).bits(k.vi)

        def scale(run: int) -> Val:
            both = pair(run // 2)
            return (both << 16 if run % 2 == 0 else both).arithmetic_shift(16)

        def word(number: int) -> Val:
            run, n = divmod(number, 4)
            if run not in runs:
                runs[run] = [k.load(k.vi, group, 4 * (3 * run + part) * self.lanes) for part in range(3)]
            return _run_word(runs[run], n)

        halves = vec(i16, self.lanes)
        return SuperBlock(word, scale, pair, lambda: k.target.from_half(k, k.load(halves, group, self._factor)))

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        factor = k.target.from_half(k, k.load(i16, start, lane * 2 + self._factor))
        values = []
        for pair in range(8):
            words, scales = [], []
            for run in (2 * pair, 2 * pair + 1):
                parts = [k.load(i32, start, lane * 4 + 4 * (3 * run + part) * self.lanes) for part in range(3)]
                words += [_run_word(parts, n) for n in range(4)]
                at = lane * 2 + (self._pairs + 2 * pair * self.lanes + run % 2)
                scales.append(factor * k.load(i8, start, at).sext(i32).to_float())
            for n, value in enumerate(byte_values(k, words, signed=False)):
                values.append((value - 32.0) * k.splat(scales[n * self.lanes // 16]))
        return values


def _file_word(nibbles: list[Val], highs: list[Val], number: int) -> Val:
    """Return word 0..31 of a half of the file's block, of 16 dwords of nibbles and 8 of high bits (ggml's
    block_q6_K)."""
    quarter, w = divmod(number, 8)
    nibble = nibbles[8 * (quarter % 2) + w]
    low = (nibble if quarter < 2 else nibble >> 4) & NIBBLES
    return low | (shift(highs[w], 4 - 2 * quarter) & HIGH)


def _join_run(words: list[Val]) -> list[Val]:
    """Return the three vectors of a run's four words."""
    first, *others = words
    return [word | ((first << (2 * n)) & UPPER_ENDS) for n, word in enumerate(others, 1)]


def _run_word(vectors: list[Val], number: int) -> Val:
    """Return word 0..3 of a run, given its three vectors."""
    if number:
        return vectors[number - 1] & SIX_BITS
    first, second, third = ((vector >> (2 * n)) & (HIGH >> (2 * n - 2)) for n, vector in enumerate(vectors, 1))
    return first | second | third
