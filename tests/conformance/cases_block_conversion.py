"""Cases of ops that turn rows of numbers into blocks of a number format, and back."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.case import Case, On, case
from quant_inputs import patterns
from sporelm import ops
from sporelm.backends.cpu.lowering.block_conversion import DEQUANTIZED_FORMATS, QUANTIZED_FORMATS
from sporelm.quant import FORMATS

COMMON = ("F16", "Q4_0", "Q4_K", "Q8_0")  # tried on every target
ELSEWHERE = ("NVFP4",)  # one of those that the numpy meaning alone makes and reads
SHAPES = ((1, 1), (7, 3), (37, 1), (5, 9))  # rows, and blocks (of formats without: runs of 7 numbers) of each


def rounded(on: On, form: str, rows: int, blocks: int) -> Any:
    return ops.quantize_blocks(on.rows(rows, columns(form, blocks)), format=form)


def weighed(on: On, form: str, rows: int, blocks: int) -> Any:
    width = columns(form, blocks)
    importance = on.values(width) ** 2
    importance[::5] = 0
    return ops.quantize_blocks(on.rows(rows, width), on.tensor(importance), format=form)


def widened(on: On, form: str, rows: int, blocks: int) -> Any:
    kind = FORMATS[form]
    count = columns(form, blocks) // kind.values
    found = ops.dequantize_blocks(on.tensor(patterns(form, kind.nbytes, rows * count).reshape(rows, -1)), format=form)
    numbers = found.numpy()
    return np.where(np.isnan(numbers), np.float32(-1), numbers)  # the bits of a NaN are nobody's business


def counted(on: On, rows: int, width: int) -> Any:
    x = on.values(rows, width)
    for number in (np.nan, np.inf, -np.inf):
        x[on.random.integers(0, rows), on.random.integers(0, width)] = number
    return ops.count_nonfinite(on.tensor(x))


def columns(form: str, blocks: int) -> int:
    """Columns of so many blocks."""
    return blocks * (FORMATS[form].values if FORMATS[form].values > 1 else 7)


def cases() -> Iterator[Case]:
    kinds = (("quantize_blocks", rounded, QUANTIZED_FORMATS), ("dequantize_blocks", widened, DEQUANTIZED_FORMATS))
    for op, work, formats in kinds:
        for form in (*sorted(formats), *ELSEWHERE):
            for rows, blocks in SHAPES:
                common = form in COMMON and rows != 5
                yield case(op, f"{form} {rows}x{blocks}", work, form, rows, blocks, exact=True, common=common)
    for form in sorted(QUANTIZED_FORMATS):
        if FORMATS[form].can_weigh:
            for rows, blocks in SHAPES:
                name = f"{form} {rows}x{blocks} with importance"
                common = form in COMMON and rows == 7
                yield case("quantize_blocks", name, weighed, form, rows, blocks, exact=True, common=common)
    for rows, width in ((1, 1), (7, 33), (40, 320)):
        yield case("count_nonfinite", f"{rows}x{width}", counted, rows, width, exact=True)
