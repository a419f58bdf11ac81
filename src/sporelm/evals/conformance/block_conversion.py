"""Cases of ops that turn rows of numbers into blocks of a number format, and back."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case
from sporelm.quant import FORMATS

COMMON = ("F16", "Q4_0", "Q4_K", "Q8_0")  # tried on every target
# The formats of files that back-ends convert.
CONVERTED = (
    *("BF16", "F16", "IQ4_NL", "IQ4_XS", "MXFP4", "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K"),
    *("Q6_K", "Q8_0", "TQ1_0", "TQ2_0"),
)
ELSEWHERE = ("NVFP4", "Q1_0", "Q2_0")  # only the numpy reference reads and writes such formats
SHAPES = ((1, 1), (7, 3), (37, 1), (5, 9))  # rows, and blocks (of formats without: runs of 7 numbers) of each


def rounded(on: On, format_name: str, rows: int, blocks: int) -> Any:
    return ops.quantize_blocks(on.rows(rows, columns(format_name, blocks)), format=format_name)


def weighed(on: On, format_name: str, rows: int, blocks: int) -> Any:
    width = columns(format_name, blocks)
    importance = on.values(width) ** 2
    importance[::5] = 0
    return ops.quantize_blocks(on.rows(rows, width), on.tensor(importance), format=format_name)


def widened(on: On, format_name: str, rows: int, blocks: int) -> Any:
    kind = FORMATS[format_name]
    count = columns(format_name, blocks) // kind.values
    stored = on.random.integers(0, 256, (rows, count * kind.nbytes), np.uint8)
    found = ops.dequantize_blocks(on.tensor(stored), format=format_name)
    numbers = found.numpy()
    return np.where(np.isnan(numbers), np.float32(-1), numbers)  # the bits of a NaN may differ


def counted(on: On, rows: int, width: int) -> Any:
    x = on.values(rows, width)
    for number in (np.nan, np.inf, -np.inf):
        x[on.random.integers(0, rows), on.random.integers(0, width)] = number
    return ops.count_nonfinite(on.tensor(x))


def columns(format_name: str, blocks: int) -> int:
    """Return the columns of this number of blocks, or of runs of 7 numbers for a format without blocks."""
    return blocks * (FORMATS[format_name].values if FORMATS[format_name].values > 1 else 7)


def cases() -> Iterator[Case]:
    for op, work in (("quantize_blocks", rounded), ("dequantize_blocks", widened)):
        for format_name in (*CONVERTED, *ELSEWHERE):
            for rows, blocks in SHAPES:
                common = format_name in COMMON and rows != 5
                yield case(
                    op, f"{format_name} {rows}x{blocks}", work, format_name, rows, blocks, exact=True, common=common
                )
    for format_name in CONVERTED:
        if FORMATS[format_name].can_weigh:
            for rows, blocks in SHAPES:
                name = f"{format_name} {rows}x{blocks} with importance"
                common = format_name in COMMON and rows == 7
                yield case("quantize_blocks", name, weighed, format_name, rows, blocks, exact=True, common=common)
    for rows, width in ((1, 1), (7, 33), (40, 320)):
        yield case("count_nonfinite", f"{rows}x{width}", counted, rows, width, exact=True)
