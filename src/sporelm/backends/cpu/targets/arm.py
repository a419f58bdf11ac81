"""64-bit Arm (Arm Architecture Reference Manual, A64 Advanced SIMD): plain, with SDOT, with SMMLA; four lanes each.

Weights keep their signs. Activations are between -127 and 127, as kernels/quantize_rows.py rounds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llvmlite import ir

from sporelm.backends.cpu.jit.builder import Builder
from sporelm.backends.cpu.jit.ssa_values import Val, f16, f32, i8, i16, i32, i64, vec
from sporelm.backends.cpu.targets.cpu_target import CpuTarget, Totals, Words, byte_table, bytes_of, widen_type
from sporelm.backends.cpu.targets.tiles import Tiles, shipped_tiles

BYTES, HALVES, WORDS, PAIRS = vec(i8, 16), vec(i16, 8), vec(i32, 4), vec(i64, 2)
HALF_RANGE, ACTIVATION = 32767, 127
SYSTEM = 15  # the full-system option of ISB


@dataclass(frozen=True)
class Neon(CpuTarget):
    """The baseline of every 64-bit Arm CPU: SMULL / SMLAL multiply bytes and add the products in 16 bits.

    As many words are added there as cannot overflow (17 of four-bit weights, 2 of eight-bit ones), then pairs in 32
    bits.
    """

    name: str = "neon"
    features: str = "+neon"
    fused: bool = True
    tiles: Tiles = field(default_factory=lambda: shipped_tiles("neon"))

    def multiply(self, k: Builder, words: Words, count: int, x: list[Val], totals: Totals, largest: int) -> Totals:
        run = max(1, HALF_RANGE // (ACTIVATION * largest))
        for start in range(0, count, run):
            partial: list[list[list[Val]]] = [[[] for _ in row] for row in totals]
            for number in range(start, min(count, start + run)):
                weights = [[_widen_half(k, word.bits(BYTES), half) for half in (0, 1)] for word in words(number)]
                for t, row in enumerate(x):
                    activation = _widen_half(k, k.broadcast(k.vi, row, 4 * number).bits(BYTES), 0)
                    for p, halves in enumerate(weights):
                        products = [half * activation for half in halves]
                        held = partial[t][p]
                        partial[t][p] = [a + b for a, b in zip(held, products, strict=True)] if held else products
            totals = [
                [total + _add_four(k, *sums) for total, sums in zip(row, parts, strict=True)]
                for row, parts in zip(totals, partial, strict=True)
            ]
        return totals

    def dot(self, k: Builder, total: Val, weights: Val, activations: Val, largest: int) -> Val:
        sides = [[_widen_half(k, side.bits(BYTES), half) for half in (0, 1)] for side in (weights, activations)]
        return total + _add_four(k, *(a * b for a, b in zip(*sides, strict=True)))

    def dot_pairs(self, k: Builder, total: Val, left: Val, right: Val) -> Val:
        products = []
        for lanes in ([0, 1, 2, 3], [4, 5, 6, 7]):
            a, b = (k.shuffle(side.bits(HALVES), side.bits(HALVES), lanes).sext(WORDS) for side in (left, right))
            products.append(a * b)
        return total + k.intrinsic("llvm.aarch64.neon.addp.v4i32", WORDS, *products)

    def lookup(self, k: Builder, table: Sequence[int], indices: Val) -> Val:
        places = indices.bits(bytes_of(indices))
        if places.type != BYTES:
            return super().lookup(k, table, indices)
        found = k.intrinsic("llvm.aarch64.neon.tbl1.v16i8", BYTES, byte_table(k, table, 1), places)
        return found.bits(indices.type)

    def from_half(self, k: Builder, halves: Val) -> Val:
        return Val(k, k.ir.fpext(halves.bits(widen_type(halves.type, f16)).raw, widen_type(halves.type, f32)))

    def to_half(self, k: Builder, values: Val) -> Val:
        return Val(k, k.ir.fptrunc(values.raw, widen_type(values.type, f16))).bits(widen_type(values.type, i16))

    def pause(self, k: Builder) -> None:
        """Emit ISB: some tens of cycles, as x86's PAUSE; YIELD does nothing on most cores."""
        k.ir.call(k.declare("llvm.aarch64.isb", ir.VoidType(), [i32]), [ir.Constant(i32, SYSTEM)])

    def ticks(self, k: Builder) -> Val:
        """Read the generic timer: LLVM's cycle counter is one that Linux withholds from programs."""
        register = k.module.add_metadata(["cntvct_el0"])
        read = k.declare("llvm.read_volatile_register.i64", i64, [ir.MetaDataType()])
        return Val(k, k.ir.call(read, [register]))


@dataclass(frozen=True)
class NeonDotprod(Neon):
    """FEAT_DotProd: SDOT adds four byte products per lane; one load of activations serves four words."""

    name: str = "neon-dotprod"
    features: str = "+neon,+dotprod"
    tiles: Tiles = field(default_factory=lambda: shipped_tiles("neon-dotprod"))

    def multiply(self, k: Builder, words: Words, count: int, x: list[Val], totals: Totals, largest: int) -> Totals:
        if count % 4:
            return CpuTarget.multiply(self, k, words, count, x, totals, largest)
        sums = [list(row) for row in totals]
        for start in range(0, count, 4):
            loaded = [k.load(WORDS, row, 4 * start) for row in x]
            for number in range(start, start + 4):
                weights = words(number)
                for t, activations in enumerate(loaded):
                    lane = k.shuffle(activations, activations, [number - start] * 4)
                    for p, weight in enumerate(weights):
                        sums[t][p] = self.dot(k, sums[t][p], weight, lane, largest)
        return sums

    def dot(self, k: Builder, total: Val, weights: Val, activations: Val, largest: int) -> Val:
        return k.intrinsic(
            "llvm.aarch64.neon.sdot.v4i32.v16i8", WORDS, total, weights.bits(BYTES), activations.bits(BYTES)
        )


@dataclass(frozen=True)
class NeonI8mm(NeonDotprod):
    """FEAT_I8MM: SMMLA multiplies two rows by two tokens, eight bytes each; SDOT computes a last odd token."""

    name: str = "neon-i8mm"
    features: str = "+neon,+dotprod,+i8mm"
    tiles: Tiles = field(default_factory=lambda: shipped_tiles("neon-i8mm"))

    def multiply(self, k: Builder, words: Words, count: int, x: list[Val], totals: Totals, largest: int) -> Totals:
        if len(x) == 1 or count % 4:
            return NeonDotprod.multiply(self, k, words, count, x, totals, largest)
        paired = range(0, len(x) - 1, 2)
        # [pair][panel][half]: rows 2h and 2h + 1 of a panel by two tokens, row by row
        sums = [
            [[_zip(k, totals[t][p], totals[t + 1][p], half) for half in (0, 1)] for p in range(len(totals[0]))]
            for t in paired
        ]
        last = [list(row) for row in totals[len(x) // 2 * 2 :]]
        for start in range(0, count, 4):
            loaded = [k.load(WORDS, row, 4 * start) for row in x]
            for number in range(start, start + 4, 2):
                weights = list(zip(words(number), words(number + 1), strict=True))
                mixed = [[_zip(k, *pair, half) for half in (0, 1)] for pair in weights]
                for which, t in enumerate(paired):
                    tokens = _two_tokens(k, loaded[t], loaded[t + 1], (number - start) // 2)
                    for p, halves in enumerate(mixed):
                        held = sums[which][p]
                        sums[which][p] = [_smmla(k, s, w, tokens) for s, w in zip(held, halves, strict=True)]
                for row, activations in zip(last, loaded[len(x) // 2 * 2 :], strict=True):
                    for n, both in enumerate(zip(*weights, strict=True), number - start):
                        lane = k.shuffle(activations, activations, [n] * 4)
                        row[:] = [self.dot(k, s, w, lane, largest) for s, w in zip(row, both, strict=True)]
        finished = [[k.shuffle(low, high, list(lanes)) for low, high in pair] for pair in sums for lanes in (EVEN, ODD)]
        return [*finished, *last]


EVEN, ODD = (0, 2, 4, 6), (1, 3, 5, 7)


def _zip(k: Builder, first: Val, second: Val, half: int) -> Val:
    """Interleave lanes of two vectors: of their lower or upper half (ZIP1, ZIP2)."""
    return k.shuffle(first, second, [[0, 4, 1, 5], [2, 6, 3, 7]][half])


def _two_tokens(k: Builder, first: Val, second: Val, half: int) -> Val:
    """Return eight bytes of one token, then eight of another."""
    return k.shuffle(first.bits(PAIRS), second.bits(PAIRS), [half, 2 + half])


def _smmla(k: Builder, total: Val, rows: Val, tokens: Val) -> Val:
    """Return total + two rows times two tokens: [row 0 token 0, row 0 token 1, row 1 token 0, row 1 token 1]."""
    return k.intrinsic("llvm.aarch64.neon.smmla.v4i32.v16i8", WORDS, total, rows.bits(BYTES), tokens.bits(BYTES))


def _widen_half(k: Builder, values: Val, half: int) -> Val:
    """Return the lower or upper eight of sixteen signed bytes, as 16 bits."""
    return k.shuffle(values, values, list(range(8 * half, 8 * half + 8))).sext(HALVES)


def _add_four(k: Builder, low: Val, high: Val) -> Val:
    """Return the sums of each four neighbours of sixteen 16-bit values."""
    pairs = [k.intrinsic("llvm.aarch64.neon.saddlp.v4i32.v8i16", WORDS, half) for half in (low, high)]
    return k.intrinsic("llvm.aarch64.neon.addp.v4i32", WORDS, *pairs)


def arm_targets(cpu: str, has: dict[str, bool]) -> list[CpuTarget]:
    """Return the targets that a 64-bit Arm CPU of this name with these extensions ("dotprod", "i8mm") supports, best
    first."""
    found: list[CpuTarget] = []
    if has.get("dotprod") and has.get("i8mm"):
        found.append(NeonI8mm(cpu=cpu))
    if has.get("dotprod"):
        found.append(NeonDotprod(cpu=cpu))
    return [*found, Neon(), CpuTarget(features="+neon")]
