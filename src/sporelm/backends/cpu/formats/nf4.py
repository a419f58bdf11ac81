"""NF4 panels: nibbles for one of sixteen f32 numbers, and a factor for 64 columns.

A group is [lanes f32 factors][32][lanes] bytes, in the file's order: of each 16 bytes the low nibbles are columns 0 to
15 of a run of 32, the high ones columns 16 to 31. Numbers are looked up in registers.
"""

from collections.abc import Sequence

from llvmlite import ir

from sporelm.backends.cpu.formats.scaled_floats import HEAD, ScaledPanels
from sporelm.backends.cpu.jit import Builder, Val, f32, i8, i32, vec
from sporelm.backends.cpu.targets.x86 import Avx2
from sporelm.quant.nf4 import NF4_LEVELS

NUMBERS = [float(number) for number in NF4_LEVELS]


class NF4Panels(ScaledPanels):
    name = "NF4"
    columns = 64
    each = 2

    def column(self, k: Builder, group: Val, column: int | Val, scale: Val) -> Val:
        place = k.index(column)
        byte = ((place >> 5) << 4) | (place & 15)
        held = k.load(vec(i8, self.lanes), k.at(group, HEAD * self.lanes), byte * self.lanes).zext(k.vi)
        shift = (((place >> 4) & 1) << 2).trunc(i32)
        return lookup_numbers(k, (held >> k.splat(shift)) & 15) * scale

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        start = k.at(panel, group * self.group_bytes)
        scale = k.splat(k.load(f32, start, lane * 4))
        bytes_ = [k.load(i8, start, lane + (HEAD + n) * self.lanes).zext(i32) for n in range(32)]
        codes = []
        for column in range(self.columns):
            held = bytes_[column // 32 * 16 + column % 16]
            codes.append(held >> 4 if column % 32 >= 16 else held & 15)
        parts = [k.vector(codes[first : first + self.lanes]) for first in range(0, self.columns, self.lanes)]
        return [lookup_numbers(k, part) * scale for part in parts]


def lookup_numbers(k: Builder, codes: Val) -> Val:
    """Look up the number of each code, i32 vector of 0 to 15 -> f32 vector."""
    if isinstance(k.target, Avx2) and k.lanes == 16:  # VPERMPS
        return k.intrinsic("llvm.x86.avx512.permvar.sf.512", k.vf, _vector(k, NUMBERS), codes)
    if isinstance(k.target, Avx2):
        halves = [k.intrinsic("llvm.x86.avx2.permps", k.vf, _vector(k, NUMBERS[n : n + 8]), codes) for n in (0, 8)]
        return k.select(codes < 8, *halves)
    found = k.const(k.vf, NUMBERS[0])
    for code, number in enumerate(NUMBERS[1:], 1):
        found = k.select(codes.equals(code), k.const(k.vf, number), found)
    return found


def _vector(k: Builder, numbers: Sequence[float]) -> Val:
    return Val(k, ir.Constant(vec(f32, len(numbers)), [ir.Constant(f32, number) for number in numbers]))
