"""AMX (Intel SDM vol. 1 chapter 18, vol. 2): dot products of tiles of tokens by panels, for many tokens.

A panel's unpacked words are a tile of weights in memory order: `count` rows of sixteen lanes of four bytes. A tile of
activations has one token per row; the product has one token per row and one weight row per lane. One token and a few
use the kernels of AVX-512 VNNI. No machine with AMX has run this: it is used when SPORE_CPU_TARGET names it, never
automatically.
"""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from llvmlite import ir

from sporelm.backends.cpu.jit.builder import Builder
from sporelm.backends.cpu.jit.ssa_values import Val, i8, i16, i64, pointer, vec
from sporelm.backends.cpu.targets.cpu_target import SIGNED, CpuTarget, Totals, Words
from sporelm.backends.cpu.targets.tiles import Tiles, shipped_tiles
from sporelm.backends.cpu.targets.x86 import AVX512, Avx512Vnni, join_features
from sporelm.errors import BackendError

ROW_BYTES = 64  # bytes of a full row of a tile
MIN_TOKENS = 4  # tokens from which tiles are used
# Linux: a process requests the state that tiles need once (arch/x86/include/uapi/asm/prctl.h)
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18


class _AmxTileType(ir.Type):  # type: ignore[misc]
    """LLVM's x86_amx, which llvmlite does not define."""

    def _to_string(self) -> str:
        return "x86_amx"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AmxTileType)

    def __hash__(self) -> int:
        return hash(_AmxTileType)


@dataclass(frozen=True)
class Amx(Avx512Vnni):
    """AVX-512 VNNI whose many-token products go through tiles, sixteen lanes by up to sixteen tokens."""

    name: str = "amx"
    tiles: Tiles = field(default_factory=lambda: shipped_tiles("amx"))

    def multiply_stored(
        self, k: Builder, words: Words, where: Sequence[Val], count: int, x: list[Val], totals: Totals, largest: int
    ) -> Totals:
        if not MIN_TOKENS <= len(x) <= 16 or count > 16 or largest == SIGNED:
            return self.multiply(k, words, count, x, totals, largest)
        width = 4 * count
        activations = _memory(k, len(x) * width)
        for t, row in enumerate(x):
            k.store(k.load(vec(i8, width), row), activations, t * width)
        found = []
        for p, weights in enumerate(where):
            out = _memory(k, len(x) * ROW_BYTES)
            self.product(k, len(x), width, activations, weights, out)
            found.append([k.load(k.vi, out, t * ROW_BYTES, align=ROW_BYTES) + totals[t][p] for t in range(len(x))])
        return [list(row) for row in zip(*found, strict=True)]

    def product(self, k: Builder, tokens: int, width: int, activations: Val, weights: Val, out: Val) -> None:
        """Multiply signed bytes [tokens][width] by unsigned bytes [width / 4][16][4], to i32 [tokens][16]."""
        tile = _AmxTileType()
        rows, across, deep, groups = (ir.Constant(i16, n) for n in (tokens, ROW_BYTES, width, width // 4))
        loads = k.declare("llvm.x86.tileloadd64.internal", tile, [i16, i16, pointer, i64])
        a = k.ir.call(loads, [rows, deep, activations.raw, ir.Constant(i64, width)])
        b = k.ir.call(loads, [groups, across, weights.raw, ir.Constant(i64, ROW_BYTES)])
        none = k.ir.call(k.declare("llvm.x86.tilezero.internal", tile, [i16, i16]), [rows, across])
        multiplies = k.declare("llvm.x86.tdpbsud.internal", tile, [i16, i16, i16, tile, tile, tile])
        product = k.ir.call(multiplies, [rows, across, deep, none, a, b])
        kinds = [i16, i16, pointer, i64, tile]
        stores = k.declare("llvm.x86.tilestored64.internal", ir.VoidType(), kinds)
        k.ir.call(stores, [rows, across, out.raw, ir.Constant(i64, ROW_BYTES), product])


def _memory(k: Builder, nbytes: int) -> Val:
    """Allocate memory of the function, aligned to a row."""
    with k.ir.goto_entry_block():
        slot = k.ir.alloca(ir.ArrayType(i8, nbytes))
    slot.align = ROW_BYTES
    return Val(k, k.ir.inttoptr(k.ir.ptrtoint(slot, i64), pointer))  # llvmlite gives slots their own types


def amx_targets(cpu: str, features: dict[str, bool]) -> list[CpuTarget]:
    """Return the target, if a CPU of this name with these features (LLVM's names) supports it, on Linux."""
    if sys.platform != "linux" or not all(features.get(name, False) for name in (*AVX512, "amx-tile", "amx-int8")):
        return []
    return [Amx(cpu=cpu, features=join_features(features))]


@cache
def request_tiles() -> None:
    """Request tiles from the system, which grants them to the whole process permanently. Raise BackendError if it
    refuses."""
    if ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA):
        raise BackendError("the system does not permit AMX tiles to this process; choose another SPORE_CPU_TARGET")
