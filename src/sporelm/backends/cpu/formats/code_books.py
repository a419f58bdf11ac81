"""Code books for packing: groups of values are looked up in memory, and signs are added."""

from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from sporelm.backends.cpu.jit import Builder, Val, i8, i32
from sporelm.backends.cpu.jit.ssa_values import i64, pointer
from sporelm.quant.grids import load_grid

ONES = 0x01010101
SPREAD = 0x00204081  # a nibble times this has its bits 0..3 at 0, 8, 16, 24
THIRDS = (-1, 0, 1)  # the numbers of the books, ascending
MAGNITUDES_2 = (8, 25, 43)
MAGNITUDES_3_XXS = (4, 12, 20, 28, 36, 44, 52, 62)
MAGNITUDES_3_S = (1, 3, 5, 7, 9, 11, 13, 15)


def code_book(k: Builder, book: str, levels: Sequence[int]) -> Val:
    """Return the address of a code book in the kernel's constants: [index][values], each value as its index in
    `levels`."""
    places = np.searchsorted(levels, load_grid(book)).astype(np.uint8)
    name = f"book.{book.lower()}"
    table = k.module.globals.get(name)
    if table is None:
        table = ir.GlobalVariable(k.module, ir.ArrayType(i8, places.size), name)
        table.linkage, table.global_constant, table.align = "internal", True, 64
        table.initializer = ir.Constant(table.value_type, bytearray(places.tobytes()))
    return Val(k, k.ir.inttoptr(k.ir.ptrtoint(table, i64), pointer))


def put_group(k: Builder, book: Val, index: Val, dwords: int, codes: Val, upper: list[Val] | None = None) -> None:
    """Write group `index` (i32) of a book, `dwords` of four values each, to `codes`, combined with `upper` bits per
    dword."""
    where = k.at(book, index.zext(i64) * (4 * dwords))
    for number in range(dwords):
        word = k.load(i32, where, 4 * number)
        k.store(word if upper is None else word | upper[number], codes, 4 * number)


def spread_signs(signs: Val, bit: int) -> list[Val]:
    """Return eight signs (the low byte of an i32) as two dwords with one sign bit per byte."""
    return [((((signs >> shift) & 15) * SPREAD) & ONES) << bit for shift in (0, 4)]


def even_signs(k: Builder, code: Val) -> Val:
    """Return eight signs from a code of seven bits, i32: the eighth makes the number of negative signs even."""
    ones = k.intrinsic("llvm.ctpop", i32, code, suffix=i32)
    return code | ((ones & 1) << 7)
