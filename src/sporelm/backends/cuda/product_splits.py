"""Split-K: the columns of a matrix multiplication are split over programs, and partial sums are added up in order."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.activation import apply_activation
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow

MAX_GEMV_TOKENS = 2  # multiplied without tensor cores: the arithmetic for more takes longer than reading
MIN_PROGRAMS = 264  # two for each multiprocessor of a large GPU: with fewer, the columns are split
MAX_SPLITS = 8


class ColumnSplit(NamedTuple):
    """How the columns of a product are split over programs."""

    size: int  # of each split
    splits: int


def split_columns(programs: int, columns: int, step: int) -> ColumnSplit:
    """Split columns into whole steps, so that there are programs enough."""
    steps = triton.cdiv(columns, step)
    wanted = min(MAX_SPLITS, triton.cdiv(MIN_PROGRAMS, programs), steps)
    size = triton.cdiv(steps, wanted) * step
    return ColumnSplit(size, triton.cdiv(columns, size))


@triton.jit
def add_splits_kernel(
    partial, bias, out, rows, splits, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add up the partial sums of BLOCK results of a token in order, then apply the activation and the bias as
    `gemv_kernel` does."""
    token, tokens = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    width = 2 * rows if KIND != "" else rows
    y = tl.zeros((BLOCK,), tl.float32)
    up = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        place = partial + (split * tokens + token) * width + row
        y += tl.load(place, mask=inside, other=0.0)
        if KIND != "":
            up += tl.load(place + rows, mask=inside, other=0.0)
    if KIND != "":
        y = apply_activation(y, KIND) * up
    if bias is not None:
        y += load_wide(bias + row, inside)
    store_narrow(out + token * rows + row, y, inside)


def add_splits(partial: Tensor, bias: Tensor | None, out: Tensor, kind: str = "") -> None:
    """Add up partial sums [splits, tokens, rows], apply the activation and the bias, and write the results."""
    tokens, rows = out.shape
    block = min(1024, triton.next_power_of_2(rows))
    launch(
        add_splits_kernel,
        (tokens, triton.cdiv(rows, block)),
        *(partial, bias, out, rows, len(partial)),
        KIND=kind,
        BLOCK=block,
        num_warps=4,
    )


@triton.jit
def write_tile(y, bias, out, row, token, tokens, rows):
    """Write products [rows, tokens] as rows of tokens: results, or partial sums of one of the splits."""
    if bias is not None:
        y += load_wide(bias + row, row < rows)[:, None]
    place = (tl.program_id(2).to(tl.int64) * tokens + token)[None, :] * rows + row[:, None]
    store_narrow(out + place, y, (token < tokens)[None, :] & (row < rows)[:, None])
