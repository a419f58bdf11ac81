"""AMX (Intel SDM vol. 1 chapter 18, vol. 2): dot products of tiles of tokens by panels, for many tokens.

A panel's unpacked words are a tile of weights as they lie: `count` rows of sixteen lanes of four bytes. A tile of
activations has a token a row; the product has a token a row and a weight row a lane. One token and a few go the way of
AVX-512 VNNI. No machine with AMX has run this: it is taken when SPORE_CPU_TARGET names it, never by itself.
"""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from llvmlite import ir

from sporelm.backends.cpu.jit.builder import Builder
from sporelm.backends.cpu.jit.values import Val, i8, i16, i64, pointer, vec
from sporelm.backends.cpu.targets.target import SIGNED, Target, Totals, Words
from sporelm.backends.cpu.targets.x86 import AVX512, Avx512Vnni, flat
from sporelm.backends.cpu.tiles import Tiles, tiles_of
from sporelm.errors import BackendError

ROW = 64  # bytes of a full row of a tile
LEAST = 4  # tokens from which tiles are used
# Linux: a process asks once for the state that tiles need (arch/x86/include/uapi/asm/prctl.h)
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18


class _Tile(ir.Type):  # type: ignore[misc]
    """LLVM's x86_amx, which llvmlite does not list."""

    def _to_string(self) -> str:
        return "x86_amx"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tile)

    def __hash__(self) -> int:
        return hash(_Tile)


@dataclass(frozen=True)
class Amx(Avx512Vnni):
    """AVX-512 VNNI whose many-token products go through tiles, sixteen lanes by up to sixteen tokens."""

    name: str = "amx"
    tiles: Tiles = field(default_factory=lambda: tiles_of("amx"))

    def multiply_stored(
        self, k: Builder, words: Words, where: Sequence[Val], count: int, x: list[Val], totals: Totals, largest: int
    ) -> Totals:
        if not LEAST <= len(x) <= 16 or count > 16 or largest == SIGNED:
            return self.multiply(k, words, count, x, totals, largest)
        width = 4 * count
        activations = _memory(k, len(x) * width)
        for t, row in enumerate(x):
            k.store(k.load(vec(i8, width), row), activations, t * width)
        found = []
        for p, weights in enumerate(where):
            out = _memory(k, len(x) * ROW)
            self.product(k, len(x), width, activations, weights, out)
            found.append([k.load(k.vi, out, t * ROW, align=ROW) + totals[t][p] for t in range(len(x))])
        return [list(row) for row in zip(*found, strict=True)]

    def product(self, k: Builder, tokens: int, width: int, activations: Val, weights: Val, out: Val) -> None:
        """Signed bytes [tokens][width] times bytes without a sign [width / 4][16][4], to i32 [tokens][16]."""
        tile = _Tile()
        rows, across, deep, groups = (ir.Constant(i16, n) for n in (tokens, ROW, width, width // 4))
        loads = k.declare("llvm.x86.tileloadd64.internal", tile, [i16, i16, pointer, i64])
        a = k.ir.call(loads, [rows, deep, activations.raw, ir.Constant(i64, width)])
        b = k.ir.call(loads, [groups, across, weights.raw, ir.Constant(i64, ROW)])
        none = k.ir.call(k.declare("llvm.x86.tilezero.internal", tile, [i16, i16]), [rows, across])
        multiplies = k.declare("llvm.x86.tdpbsud.internal", tile, [i16, i16, i16, tile, tile, tile])
        product = k.ir.call(multiplies, [rows, across, deep, none, a, b])
        kinds = [i16, i16, pointer, i64, tile]
        stores = k.declare("llvm.x86.tilestored64.internal", ir.VoidType(), kinds)
        k.ir.call(stores, [rows, across, out.raw, ir.Constant(i64, ROW), product])


def _memory(k: Builder, nbytes: int) -> Val:
    """Memory of the function's own, aligned to a row."""
    with k.ir.goto_entry_block():
        slot = k.ir.alloca(ir.ArrayType(i8, nbytes))
    slot.align = ROW
    return Val(k, k.ir.inttoptr(k.ir.ptrtoint(slot, i64), pointer))  # llvmlite gives slots types of their own


def amx_targets(cpu: str, features: dict[str, bool]) -> list[Target]:
    """The target, if a CPU of this name with these features (as LLVM calls them) has what it takes, on Linux."""
    if sys.platform != "linux" or not all(features.get(name, False) for name in (*AVX512, "amx-tile", "amx-int8")):
        return []
    return [Amx(cpu=cpu, features=flat(features))]


@cache
def ask_for_tiles() -> None:
    """Ask the system for tiles, which it grants to the whole process, for good. Raises BackendError if it refuses."""
    if ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA):
        raise BackendError("the system does not permit AMX tiles to this process; choose another SPORE_CPU_TARGET")
