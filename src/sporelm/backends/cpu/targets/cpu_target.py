"""The operations that kernels need of a CPU, and their portable implementation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sporelm.backends.cpu.jit.builder import Builder
from sporelm.backends.cpu.jit.ssa_values import Val, f32, i8, i16, i32, nbytes, vec
from sporelm.backends.cpu.targets.tiles import Tiles, shipped_tiles

SIGNED = 128  # as the greatest magnitude of weight bytes: they are signed
Words = Callable[[int], list[Val]]  # the n-th i32 vector of each panel, four weight bytes a lane
Totals = list[list[Val]]  # [token][panel], i32 vectors
Scale = Callable[[], Val]  # emits a vector of scales


@dataclass(frozen=True)
class CpuTarget:
    """The portable target: plain vector arithmetic that LLVM lowers for any CPU.

    A panel of weights is `lanes` rows high: one row a lane. `signed_zero` is the byte that stands for 0 in panels of
    signed bytes: 128 if the dot product needs unsigned weights. `fused` says that the CPU has multiply-adds that round
    once. `folds_to` is the greatest byte with which many tokens may be multiplied instead of a smaller byte and a
    scale: 0 where products of such bytes overflow 16 bits. `runs_per_turn` are the runs of a super-block that one turn
    of the many-token kernel's loop multiplies. `aligns_spills` says that integer products of several tokens align the
    stack, since their tiles spill. `adds_accumulator_last` says that the incoming accumulator of a product is
    added at its end, so that it should not be loaded before. `has_wide_dots` says that one
    instruction multiplies bytes and adds to 32 bits, so that a product that begins with a number costs nothing more.
    """

    name: str = "generic"
    cpu: str = "generic"
    features: str = ""
    lanes: int = 4
    signed_zero: int = 0
    fused: bool = False
    folds_to: int = 0
    runs_per_turn: int = 1
    aligns_spills: bool = False
    adds_accumulator_last: bool = False
    has_wide_dots: bool = False
    tiles: Tiles = field(default_factory=lambda: shipped_tiles("generic"))

    def multiply(self, k: Builder, words: Words, count: int, x: list[Val], totals: Totals, largest: int) -> Totals:
        """Return totals + dot products of `count` words of each panel with the bytes at each address of `x`.

        The bytes of `x` are between -127 and 127. `largest` is the greatest magnitude of a weight byte, none negative;
        SIGNED means that they are signed.
        """
        chains = (
            2 if len(x) * len(totals[0]) < 4 and count > 4 else 1
        )  # a single sum would be one chain of dependent additions
        parts = [[[total] + [k.const(k.vi, 0)] * (chains - 1) for total in row] for row in totals]
        for number in range(count):
            weights = words(number)
            chain = number * chains // count
            for t, row in enumerate(x):
                activation = k.broadcast(k.vi, row, 4 * number)
                for p, weight in enumerate(weights):
                    parts[t][p][chain] = self.dot(k, parts[t][p][chain], weight, activation, largest)
        return [[part[0] if chains == 1 else part[0] + part[1] for part in row] for row in parts]

    def multiply_stored(
        self, k: Builder, words: Words, where: Sequence[Val], count: int, x: list[Val], totals: Totals, largest: int
    ) -> Totals:
        """Multiply words that are in memory, one vector after the other: those of panel p from `where[p]` on."""
        return self.multiply(k, words, count, x, totals, largest)

    def prepare_scale(self, k: Builder, scale: Val) -> Val:
        """Return the scales of a run, an i32 vector below 2**15, in the form that `multiply_scaled` takes."""
        return scale

    def multiply_scaled(
        self,
        k: Builder,
        words: Words,
        where: Sequence[Val],
        count: int,
        x: list[Val],
        totals: Totals,
        largest: int,
        scales: Sequence[Scale],
        biases: Sequence[Val] = (),
    ) -> Totals:
        """Return totals + dot products times each panel's scales; `where` as in `multiply_stored`, or empty.

        `scales` emit prepared scales, so that registers hold them only where they are used. `biases`, i32 vectors, are
        added to each token's dot products before; only targets with `has_wide_dots` take them.
        """
        biases = biases or [k.const(k.vi, 0)] * len(totals)
        starts = [[bias] * len(row) for bias, row in zip(biases, totals, strict=True)]
        if where:
            dots = self.multiply_stored(k, words, where, count, x, starts, largest)
        else:
            dots = self.multiply(k, words, count, x, starts, largest)
        columns = []
        for p, make_scale in enumerate(scales):
            scale = make_scale()
            columns.append([row[p] + dot[p] * scale for row, dot in zip(totals, dots, strict=True)])
        return [list(row) for row in zip(*columns, strict=True)]

    def dot(self, k: Builder, total: Val, weights: Val, activations: Val, largest: int) -> Val:
        """Return total + the sum over the four bytes of each lane of weight * activation; all i32 vectors."""
        for byte in range(4):
            if largest == SIGNED:
                weight = (weights << (24 - 8 * byte)).arithmetic_shift(24)
            else:
                weight = (weights >> (8 * byte)) & 0xFF
            total = total + weight * (activations << (24 - 8 * byte)).arithmetic_shift(24)
        return total

    def dot_pairs(self, k: Builder, total: Val, left: Val, right: Val) -> Val:
        """Return total + the sum over the two signed 16-bit halves of each lane of left * right; all i32 vectors."""
        for half in range(2):
            a, b = ((side << (16 - 16 * half)).arithmetic_shift(16) for side in (left, right))
            total = total + a * b
        return total

    def lookup(self, k: Builder, table: Sequence[int], indices: Val) -> Val:
        """Look up the byte of `table`, of 16 from -128 to 255, at each byte of `indices`, 0 to 15; for any vector
        type."""
        places = indices.bits(bytes_of(indices))
        found = k.const(places.type, 0)
        for number, byte in enumerate(table):
            if byte:
                found = found | (places.equals(number).sext(places.type) & signed_byte(byte))
        return found.bits(indices.type)

    def from_half(self, k: Builder, halves: Val) -> Val:
        """Convert f16 bits (i16, scalar or vector) to f32, exactly, by integer arithmetic."""
        wide, real = widen_type(halves.type, i32), widen_type(halves.type, f32)
        bits = halves.zext(wide)
        magnitude = (bits & 0x7FFF) << 13
        scaled = magnitude.bits(real) * 2.0**112
        special = k.select(magnitude >= 0x7C00 << 13, scaled.bits(wide) | 0x7F800000, scaled.bits(wide))
        return (special | ((bits & 0x8000) << 16)).bits(real)

    def to_half(self, k: Builder, values: Val) -> Val:
        """Convert f32 to f16 bits (i16), ties to even, by integer arithmetic."""
        wide, half = widen_type(values.type, i32), widen_type(values.type, i16)
        bits = values.bits(wide)
        sign = (bits >> 16) & 0x8000
        magnitude = bits & 0x7FFFFFFF
        # below 2**-14 the float addition rounds to a multiple of 2**-24, the step of subnormal halves
        tiny = (magnitude.bits(values.type) + 0.5).bits(wide) - 0x3F000000
        rounded = (magnitude + (((magnitude >> 13) & 1) + (0xFFF - (112 << 23)))) >> 13
        finite = k.select(magnitude < 113 << 23, tiny, rounded)
        large = k.select(magnitude > 0x7F800000, k.const(wide, 0x7E00), k.const(wide, 0x7C00))
        return (sign | k.select(magnitude >= 0x47800000 - 0x1000, large, finite)).trunc(half)

    def pause(self, k: Builder) -> None:
        """Tell the core that this is a spin loop."""

    def ticks(self, k: Builder) -> Val:
        """Return a counter that all cores share: i64; 0 where programs cannot read one."""
        return k.index(0)


def widen_type(kind: Any, element: Any) -> Any:
    """Return `kind` with another element type."""
    return vec(element, kind.count) if hasattr(kind, "count") else element


def bytes_of(value: Val) -> Any:
    """Return the type of a value's bytes, as a vector."""
    return vec(i8, nbytes(value.type))


def signed_byte(byte: int) -> int:
    """Return a byte from -128 to 255 in LLVM's notation."""
    return byte - 256 if byte > 127 else byte


def byte_table(k: Builder, table: Sequence[int], repeats: int) -> Val:
    """Return 16 bytes from -128 to 255, `repeats` times, as a constant vector."""
    return k.constants(i8, [signed_byte(byte) for byte in table] * repeats)
