"""CPU targets: vector width, integer dot product, half-precision conversion and tile shapes of each kind of CPU."""

import platform
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm

from sporelm import settings
from sporelm.backends.cpu.jit.builder import Builder
from sporelm.backends.cpu.jit.values import Val, f16, f32, i8, i16, i32, vec
from sporelm.errors import BackendError


@dataclass(frozen=True)
class Tiles:
    """Register tiles, in vectors of rows by tokens (measured: see docs/lab.md)."""

    few_tokens: int = 8  # tokens that share one pass over a panel
    many_panels: int = 4
    many_tokens: int = 3
    float_panels: int = 4
    float_tokens: int = 6
    attention_rows: int = 6


@dataclass(frozen=True)
class Target:
    """The portable target: plain vector arithmetic that LLVM lowers for any CPU.

    A panel of weights is `lanes` rows high: one row a lane.
    """

    name: str = "generic"
    cpu: str = "generic"
    features: str = ""
    lanes: int = 4
    tiles: Tiles = field(
        default_factory=lambda: Tiles(
            few_tokens=4, many_panels=2, many_tokens=3, float_panels=2, float_tokens=4, attention_rows=2
        )
    )

    def dot(self, k: Builder, total: Val, unsigned: Val, signed: Val) -> Val:
        """total + the sum over the four bytes of each lane of unsigned byte * signed byte; all i32 vectors."""
        for byte in range(4):
            weight = (unsigned >> (8 * byte)) & 0xFF
            activation = (signed << (24 - 8 * byte)).arithmetic_shift(24)
            total = total + weight * activation
        return total

    def from_half(self, k: Builder, halves: Val) -> Val:
        """f16 bits (i16, scalar or vector) to f32, exactly, by integer arithmetic."""
        wide, real = _wide(halves.type, i32), _wide(halves.type, f32)
        bits = halves.zext(wide)
        magnitude = (bits & 0x7FFF) << 13
        scaled = magnitude.bits(real) * 2.0**112
        special = k.select(magnitude >= 0x7C00 << 13, scaled.bits(wide) | 0x7F800000, scaled.bits(wide))
        return (special | ((bits & 0x8000) << 16)).bits(real)

    def to_half(self, k: Builder, values: Val) -> Val:
        """f32 to f16 bits (i16), ties to even, by integer arithmetic."""
        wide, half = _wide(values.type, i32), _wide(values.type, i16)
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


@dataclass(frozen=True)
class Avx512Vnni(Target):
    """AVX-512 with VNNI: sixteen lanes, four byte products a lane in one instruction (Intel SDM, VPDPBUSD)."""

    name: str = "avx512-vnni"
    lanes: int = 16
    tiles: Tiles = field(default_factory=Tiles)

    def dot(self, k: Builder, total: Val, unsigned: Val, signed: Val) -> Val:
        bytes_ = vec(i8, 4 * self.lanes)
        return k.intrinsic("llvm.x86.avx512.vpdpbusd.512", k.vi, total, unsigned.bits(bytes_), signed.bits(bytes_))

    def from_half(self, k: Builder, halves: Val) -> Val:
        return Val(k, k.ir.fpext(halves.bits(_wide(halves.type, f16)).raw, _wide(halves.type, f32)))

    def to_half(self, k: Builder, values: Val) -> Val:
        return Val(k, k.ir.fptrunc(values.raw, _wide(values.type, f16))).bits(_wide(values.type, i16))

    def pause(self, k: Builder) -> None:
        _x86_pause(k)


@dataclass(frozen=True)
class GenericX86(Target):
    """The portable target on x86: only the pause instruction is known of it."""

    def pause(self, k: Builder) -> None:
        _x86_pause(k)


def _x86_pause(k: Builder) -> None:
    from llvmlite import ir

    k.ir.call(k.declare("llvm.x86.sse2.pause", ir.VoidType(), []), [])


def _wide(kind: Any, element: Any) -> Any:
    """`kind` with another element type."""
    return vec(element, kind.count) if hasattr(kind, "count") else element


VNNI = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "f16c", "fma")


def available() -> dict[str, Target]:
    """The targets that this CPU can run, best first."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    found: dict[str, Target] = {}
    if x86:
        features = llvm.get_host_cpu_features()
        if all(features.get(name, False) for name in VNNI):
            found["avx512-vnni"] = Avx512Vnni(cpu=llvm.get_host_cpu_name(), features=features.flatten())
        found["generic"] = GenericX86(cpu="x86-64")
    else:
        found["generic"] = Target()
    return found


def choose(name: str | None = None) -> Target:
    """The named target (SPORE_CPU_TARGET when `name` is None), or the best. Raises BackendError with the list."""
    wanted = settings.CPU_TARGET.value if name is None else name
    targets = available()
    if not wanted:
        return next(iter(targets.values()))
    if wanted not in targets:
        raise BackendError(f"no CPU target {wanted!r} on this CPU; there are {', '.join(targets)} (SPORE_CPU_TARGET)")
    return targets[wanted]
