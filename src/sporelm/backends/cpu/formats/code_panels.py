"""Super-blocks of codes of two, three or four bits. A code stands for a byte of a table, or for itself.

A group is a super-block: [vectors of codes][runs x lanes bytes of scales, in pairs of runs][lanes f16 factors]([lanes
f16 factors of minima]). Codes are laid out as in ggml's K-quants. Four bits: 32 vectors; with eight words of four
values in each 32 values, a lane of vector 8q + w holds word w of the 32 values 2q in its low nibbles, and of the next
32 in its high nibbles. Two bits: 16 vectors; in vector 8h + w bits 2g and 2g + 1 of each byte are word w of the 32
values 4h + g. Three bits: the lower two bits likewise, then 8 vectors of upper bits; in vector w bit n belongs to the
32 values n.

Blocks of the file are packed one row at a time by `unpack`.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from sporelm.backends.cpu.formats.nibble_panels import NIBBLES
from sporelm.backends.cpu.formats.panels import SuperBlock, SuperPanels, shift
from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32, vec
from sporelm.backends.cpu.targets import CpuTarget
from sporelm.backends.cpu.targets.cpu_target import SIGNED

PAIR = 0x03030303
UPPER = 0x04040404
FITS = 129  # the greatest byte for which the sum of two products with 127 fits 16 bits


class CodePanels(SuperPanels):
    """Panels of codes. `SuperBlock` describes how a value is composed of its parts.

    bits         of a code
    row_block    bytes of a block in the file, `factor_at` of them before its f16 factor
    table        the integers that codes stand for; empty: codes are their own bytes, and `zero` stands for 0
    step         divisor of the factor: values are integer multiples of factor / step
    has_scales   whether runs have scales
    """

    bits: ClassVar[int] = 4
    factor_at: ClassVar[int] = 0
    table: ClassVar[tuple[int, ...]] = ()
    zero: ClassVar[int] = 0
    step: ClassVar[int] = 1
    has_scales: ClassVar[bool] = True

    def __init__(self, target: CpuTarget) -> None:
        super().__init__(target)
        self.scaled = self.has_scales
        self.middle, self.largest = self.zero, (1 << self.bits) - 1
        if self.table:
            least, greatest = min(self.table), max(self.table)
            unsigned = bool(target.signed_zero) or greatest - least <= FITS
            self.middle, self.largest = (-least, greatest - least) if unsigned else (0, SIGNED)
        self._bytes = [value + self.middle for value in self.table] + [0] * (16 - len(self.table))
        self._upper = 64 * self.lanes
        self._scales = 32 * self.bits * self.lanes
        self._factors = self._scales + (self.runs * self.lanes if self.has_scales else 0)

    @property
    def group_bytes(self) -> int:
        return self._factors + 2 * self.lanes

    # ---- packing

    def unpack(self, k: Builder, block: Val, codes: Val) -> None:
        """Write the 256 codes of a block of the file, a byte each, to `codes`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement unpack")

    def stored_scale(self, k: Builder, block: Val, run: Val) -> Val:
        """Return the byte, as i32, that panels store for run `run` (i64) of a block of the file."""
        raise NotImplementedError(f"{type(self).__name__} does not implement stored_scale")

    def stored_factors(self, k: Builder, block: Val) -> list[Val]:
        """Return the halves that panels store for a block of the file, the factor first."""
        return [k.load(i16, block, self.factor_at, align=1)]

    def pack_row(self, k: Builder, block: Val, present: Val, lane: Val, group: Val, scratch: Val) -> None:
        self.unpack(k, block, scratch)
        self._store_codes(k, scratch, k.at(group, lane * 4))
        halves = k.at(group, lane * 2)  # first byte of this row's two-byte lanes
        if self.has_scales:
            with k.range(self.runs) as run:
                at = (run >> 1) * (2 * self.lanes) + (run & 1) + self._scales
                k.store(self.stored_scale(k, block, run).trunc(i8), halves, at)
        for number, half in enumerate(self.stored_factors(k, block)):
            kept = k.select(present, half, k.const(i16, 0))
            k.store(kept, halves, self._factors + 2 * self.lanes * number)

    def _store_codes(self, k: Builder, codes: Val, lane: Val) -> None:
        """Store 256 bytes of codes into a lane's dwords of vectors."""
        vector = 4 * self.lanes
        if self.bits == 4:
            with k.range(4) as quarter, k.range(8) as w:
                start = k.at(codes, quarter * 64 + w * 4)
                both = k.load(i32, start) | (k.load(i32, start, 32) << 4)
                k.store(both, lane, (quarter * 8 + w) * vector)
            return
        with k.range(2) as half, k.range(8) as w:
            start = k.at(codes, half * 128 + w * 4)
            parts = [shift(k.load(i32, start, 32 * g) & PAIR, 2 * g) for g in range(4)]
            k.store(parts[0] | parts[1] | parts[2] | parts[3], lane, (half * 8 + w) * vector)
        if self.bits == 3:
            with k.range(8) as w:
                upper = k.const(i32, 0)
                for n in range(8):
                    upper = upper | shift(k.load(i32, codes, w * 4 + 32 * n) & UPPER, n - 2)
                k.store(upper, lane, w * vector + self._upper)

    # ---- reading

    def scale_of(self, stored: Val) -> Val:
        """Return scales, i32, given the sign-extended bytes of the panel."""
        return stored

    def pair_of(self, stored: Val) -> Val:
        """Return the i16 factors of the activations' sums, given the same bytes."""
        return stored

    def factor_of(self, k: Builder, halves: Val) -> Val:
        """Return the factor, f32, given the panel's halves."""
        factor = k.target.from_half(k, halves)
        return factor if self.step == 1 else factor * (1 / self.step)

    def _places(self, number: int) -> tuple[int, int]:
        """Return for word 0..63 its vector of codes (of their lower two bits) and the bit at which it begins."""
        n, w = divmod(number, 8)
        return (8 * (n // 2) + w, 4 * (n % 2)) if self.bits == 4 else (8 * (n // 4) + w, 2 * (n % 4))

    def _codes(self, lower: Val, upper: Val | None, number: int) -> Val:
        """Return the codes of word `number`, given its dwords, scalars or vectors."""
        moved = shift(lower, -self._places(number)[1])
        if self.bits == 4:
            return moved & NIBBLES
        return moved & PAIR if upper is None else (moved & PAIR) | (shift(upper, 2 - number // 8) & UPPER)

    def _bytes_of(self, k: Builder, codes: Val) -> Val:
        return k.target.lookup(k, self._bytes, codes) if self.table else codes

    def _both(self, k: Builder, group: Val, number: int) -> Val:
        """Return the panel's bytes for runs 2i and 2i + 1 of each row, as i16."""
        stored = k.load(vec(i8, 2 * self.lanes), group, self._scales + 2 * number * self.lanes)
        return stored.sext(vec(i16, 2 * self.lanes))

    def run_scale(self, k: Builder, group: Val, run: int) -> Val:
        """Return the scale of a run, i32 vector."""
        both = self._both(k, group, run // 2).bits(k.vi)
        return self.scale_of((both << 16 if run % 2 == 0 else both).arithmetic_shift(16))

    def super_block(self, k: Builder, group: Val) -> SuperBlock:
        vector = 4 * self.lanes

        def word(number: int) -> Val:
            lower = k.load(k.vi, group, self._places(number)[0] * vector)
            upper = k.load(k.vi, group, self._upper + number % 8 * vector) if self.bits == 3 else None
            return self._bytes_of(k, self._codes(lower, upper, number))

        def pair(number: int) -> Val:
            if not self.has_scales:
                return k.const(k.vi, 0x00010001)
            return self.pair_of(self._both(k, group, number)).bits(k.vi)

        def halves(number: int) -> Val:
            return k.load(vec(i16, self.lanes), group, self._factors + 2 * self.lanes * number)

        return SuperBlock(
            word,
            partial(self.run_scale, k, group) if self.scaled else None,
            pair,
            lambda: self.factor_of(k, halves(0)),
            (lambda: -self.minimum_factor_of(k, halves)) if self.has_minima else None,
        )

    def minimum_factor_of(self, k: Builder, halves: Callable[[int], Val]) -> Val:
        """Return the factor of minima, f32, given the panel's halves; `halves(n)` loads the nth ones."""
        raise NotImplementedError(f"{type(self).__name__} does not implement minimum_factor_of")

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        dwords, bytes_ = k.at(start, lane * 4), k.at(start, lane * 2)
        vector = 4 * self.lanes
        lower = [k.load(i32, dwords, n * vector) for n in range(16 if self.bits < 4 else 32)]
        upper = [k.load(i32, dwords, self._upper + n * vector) for n in range(8)] if self.bits == 3 else [None] * 8

        def halves(number: int) -> Val:
            return k.load(i16, bytes_, self._factors + 2 * self.lanes * number)

        factor = self.factor_of(k, halves(0))
        drop = self.minimum_factor_of(k, halves) if self.has_minima else None
        values: list[Val] = []
        for first in range(0, 64, self.lanes):
            numbers = range(first, first + self.lanes)
            codes = k.vector([self._codes(lower[self._places(n)[0]], upper[n % 8], n) for n in numbers])
            found = self._bytes_of(k, codes).bits(vec(i8, vector))
            for part in range(0, vector, self.lanes):
                few = k.shuffle(found, found, list(range(part, part + self.lanes)))
                whole = (few.sext(k.vi) if self.largest == SIGNED else few.zext(k.vi)).to_float()
                if self.middle:
                    whole = whole - float(self.middle)
                values.append(self._scaled(k, whole, bytes_, (4 * first + part) * self.runs // 256, factor, drop))
        return values

    def _scaled(self, k: Builder, whole: Val, bytes_: Val, run: int, factor: Val, drop: Val | None) -> Val:
        """Return the values of a run of one row, given their integers."""
        if not self.has_scales:
            return whole * k.splat(factor)
        stored = k.load(i8, bytes_, self._scales + run // 2 * 2 * self.lanes + run % 2).sext(i32)
        return self.scaled_values(k, whole, stored, factor, drop)

    def scaled_values(self, k: Builder, whole: Val, stored: Val, factor: Val, drop: Val | None) -> Val:
        """Return the same, given the panel's byte for the run."""
        values = whole * k.splat(factor * self.scale_of(stored).to_float())
        if drop is None:
            return values
        return values - k.splat(drop * self.pair_of(stored.trunc(i16)).sext(i32).to_float())


def spread_pairs(k: Builder, block: Val, offset: int, codes: Val) -> None:
    """Spread 64 bytes of bit pairs, as in Q2_K, Q3_K and TQ2_0, to 256 bytes of codes (`packing.split_bit_pairs`)."""
    with k.range(2) as half, k.range(8) as w:
        pairs = k.load(i32, block, half * 32 + w * 4 + offset, align=1)
        for g in range(4):
            k.store(shift(pairs, -2 * g) & PAIR, codes, half * 128 + w * 4 + 32 * g)


def nibble(k: Builder, block: Val, offset: int, number: Val) -> Val:
    """Return nibble `number` (i64), as i32, counted from `offset` bytes into a block, low nibbles first."""
    both = k.load(i8, block, (number >> 1) + offset).zext(i32)
    return k.select((number & 1).equals(0), both, both >> 4) & 15
