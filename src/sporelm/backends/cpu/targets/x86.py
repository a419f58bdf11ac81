"""x86 CPUs (Intel SDM vol. 2): AVX-512 VNNI, AVX-VNNI, AVX2, and the portable target with x86's pause."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from llvmlite import ir

from sporelm.backends.cpu.jit.builder import Builder
from sporelm.backends.cpu.jit.ssa_values import Val, f16, f32, i8, i16, i64, vec
from sporelm.backends.cpu.targets.cpu_target import (
    SIGNED,
    CpuTarget,
    Scale,
    Totals,
    Words,
    byte_table,
    bytes_of,
    widen_type,
)
from sporelm.backends.cpu.targets.tiles import Tiles, shipped_tiles


@dataclass(frozen=True)
class GenericX86(CpuTarget):
    """The portable target on x86, with its pause instruction."""

    cpu: str = "x86-64"

    def pause(self, k: Builder) -> None:
        k.ir.call(k.declare("llvm.x86.sse2.pause", ir.VoidType(), []), [])

    def ticks(self, k: Builder) -> Val:
        """Read RDTSC."""
        return k.intrinsic("llvm.readcyclecounter", i64)


@dataclass(frozen=True)
class Avx2(GenericX86):
    """AVX2 with FMA and F16C: eight lanes. VPMADDUBSW adds pairs of byte products in 16 bits, and saturates there.

    So products are accumulated in 16 bits for as many words as cannot overflow: eight of four-bit weights, none of
    eight-bit ones. Signed weights become their magnitudes, and their sign moves to the activations (VPSIGNB).
    """

    name: str = "avx2"
    cpu: str = "haswell"
    features: str = "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+movbe"
    lanes: int = 8
    fused: bool = True
    runs_per_turn: int = 2
    aligns_spills: bool = True
    adds_accumulator_last: bool = True
    tiles: Tiles = field(default_factory=lambda: shipped_tiles("avx2"))

    def multiply(self, k: Builder, words: Words, count: int, x: list[Val], totals: Totals, largest: int) -> Totals:
        ones = k.const(k.vi, 0x00010001)
        return self._multiply(k, words, count, x, totals, largest, [lambda: ones] * len(totals[0]))

    def prepare_scale(self, k: Builder, scale: Val) -> Val:
        """Return pairs of equal i16: VPMADDWD multiplies and adds the pairs of products, instead of adding alone."""
        return (scale & 0xFFFF) | (scale << 16)

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
        return k.pin(self._multiply(k, words, count, x, totals, largest, scales))

    def _multiply(
        self, k: Builder, words: Words, count: int, x: list[Val], totals: Totals, largest: int, scales: Sequence[Scale]
    ) -> Totals:
        """Return totals + dot products times each panel's scales, i32 vectors of two equal i16."""
        run = max(1, 32767 // (2 * 127 * largest))
        signed = largest == SIGNED
        if len(x) == 1:  # registers hold the scales beside one token's sums
            scales = [partial(_identity, make_scale()) for make_scale in scales]
        for start in range(0, count, run):
            pairs: Totals = []
            for number in range(start, min(count, start + run)):
                weights = [word.bits(vec(i8, 4 * self.lanes)) for word in words(number)]
                found = self._pairs(k, weights, [k.at(row, 4 * number) for row in x], signed)
                pairs = _add_totals(pairs, found) if pairs else found
                if run > 1:  # otherwise LLVM multiplies all of one panel first, and keeps the activations on the stack
                    pairs = k.pin(pairs)
            factors = [make_scale().bits(vec(i16, 2 * self.lanes)) for make_scale in scales]
            sums = [
                [k.intrinsic("llvm.x86.avx2.pmadd.wd", k.vi, *both) for both in zip(row, factors, strict=True)]
                for row in pairs
            ]
            totals = _add_totals(totals, sums)
        return totals

    def _pairs(self, k: Builder, weights: list[Val], x: list[Val], signed: bool) -> Totals:
        """Return [token][panel]: products of one word with each token's four bytes, added in pairs as i16."""
        halves = vec(i16, 2 * self.lanes)
        sizes = [_magnitude(k, weight) for weight in weights] if signed else weights
        found: Totals = []
        for row in x:
            activation = k.broadcast(k.vi, row).bits(weights[0].type)
            signs = [_sign(k, activation, weight) if signed else activation for weight in weights]
            both = zip(sizes, signs, strict=True)
            found.append([k.intrinsic("llvm.x86.avx2.pmadd.ub.sw", halves, size, sign) for size, sign in both])
        return found

    def dot_pairs(self, k: Builder, total: Val, left: Val, right: Val) -> Val:
        halves = vec(i16, 2 * self.lanes)
        return total + k.intrinsic("llvm.x86.avx2.pmadd.wd", k.vi, left.bits(halves), right.bits(halves))

    def lookup(self, k: Builder, table: Sequence[int], indices: Val) -> Val:
        """Look up with VPSHUFB, which selects within 128 bits; the table is in each of them."""
        places = indices.bits(bytes_of(indices))
        name = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}.get(places.type.count)
        if name is None:
            return super().lookup(k, table, indices)
        return k.intrinsic(name, places.type, byte_table(k, table, places.type.count // 16), places).bits(indices.type)

    def from_half(self, k: Builder, halves: Val) -> Val:
        return Val(k, k.ir.fpext(halves.bits(widen_type(halves.type, f16)).raw, widen_type(halves.type, f32)))

    def to_half(self, k: Builder, values: Val) -> Val:
        return Val(k, k.ir.fptrunc(values.raw, widen_type(values.type, f16))).bits(widen_type(values.type, i16))


@dataclass(frozen=True)
class AvxVnni(Avx2):
    """AVX2 with VPDPBUSD on eight lanes, in its VEX form (AVX-VNNI) or its EVEX form (AVX-512 VL)."""

    name: str = "avx-vnni"
    signed_zero: int = 128
    folds_to: int = 255
    runs_per_turn: int = 1
    aligns_spills: bool = False
    adds_accumulator_last: bool = False
    has_wide_dots: bool = True
    tiles: Tiles = field(default_factory=lambda: shipped_tiles("avx-vnni"))

    multiply = CpuTarget.multiply
    prepare_scale = CpuTarget.prepare_scale
    multiply_scaled = CpuTarget.multiply_scaled

    def dot(self, k: Builder, total: Val, weights: Val, activations: Val, largest: int) -> Val:
        bytes_ = vec(i8, 4 * self.lanes)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        return k.intrinsic(name, k.vi, total, weights.bits(bytes_), activations.bits(bytes_))

    def dot_pairs(self, k: Builder, total: Val, left: Val, right: Val) -> Val:
        halves = vec(i16, 2 * self.lanes)
        name = f"llvm.x86.avx512.vpdpwssd.{32 * self.lanes}"
        return k.intrinsic(name, k.vi, total, left.bits(halves), right.bits(halves))


@dataclass(frozen=True)
class Avx512Vnni(AvxVnni):
    """AVX-512 with VNNI: sixteen lanes, four byte products a lane in one instruction."""

    name: str = "avx512-vnni"
    lanes: int = 16
    tiles: Tiles = field(default_factory=lambda: shipped_tiles("avx512-vnni"))


def _identity(value: Val) -> Val:
    return value


def _add_totals(left: Totals, right: Totals) -> Totals:
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(left, right, strict=True)]


def _magnitude(k: Builder, weights: Val) -> Val:
    """Return |w| of each byte; -128 gives 128, which VPMADDUBSW reads as unsigned."""
    return k.intrinsic("llvm.abs", weights.type, weights, k.const(ir.IntType(1), 0), suffix=weights.type)


def _sign(k: Builder, values: Val, signs: Val) -> Val:
    """Negate each byte of `values` where that of `signs` is negative; return 0 where it is 0."""
    return k.intrinsic("llvm.x86.avx2.psign.b", values.type, values, signs)


AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "popcnt", "movbe")
AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "f16c", "fma")


def join_features(features: dict[str, bool]) -> str:
    """Return features in LLVM's notation."""
    return ",".join(("+" if there else "-") + name for name, there in sorted(features.items()))


def x86_targets(cpu: str, features: dict[str, bool]) -> list[CpuTarget]:
    """Return the targets that a CPU of this name with these features (LLVM's names) supports, best first."""

    def has(*names: str) -> bool:
        return all(features.get(name, False) for name in names)

    found: list[CpuTarget] = []
    if has(*AVX512):
        found.append(Avx512Vnni(cpu=cpu, features=join_features(features)))
    if has(*AVX2) and (has("avxvnni") or has(*AVX512)):
        found.append(AvxVnni(cpu=cpu, features=join_features(features)))
    if has(*AVX2):
        found.append(Avx2())
    return [*found, GenericX86()]
