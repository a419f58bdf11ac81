"""LoRA with rows of several adapters in one launch of each matrix multiplication (as Punica's SGMV).

Rows are sorted by slot in tiles of TILE rows, once a step (`row_groups.py`). The first product is cut into runs of
columns: a program adds up one run, the second product adds the runs in order. A row's sums depend on no other row.
Adapters in a tuple, each with its rank, are left to torch.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import dot, load_wide, narrow, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.row_views import view_rows
from sporelm.backends.torch.add_lora import add_lora as torch_add_lora
from sporelm.backends.torch.row_groups import TILE, sort_into_tiles
from sporelm.backends.torch.step_context import STEP

MIN_RANK_BLOCK = 16  # of a product on tensor cores
MAX_RANK_BLOCK = 32  # ranks of a program
WIDTH_BLOCK = 64  # columns of a step of the first product
RUN = 512  # columns that a program of the first product adds up
OUT_BLOCK = 64  # columns of a program of the second product


class SlotTiles(NamedTuple):
    """The rows of each tile, and its slot."""

    rows: Tensor  # int32 [tiles * TILE], -1 where a tile has no more
    slots: Tensor  # int32 [tiles]; that of rows without an adapter is the number of slots


@triton.jit
def lora_down_kernel(
    x, a, tile_rows, tile_slots, partial, x_stride, num_slots, rank, width, total_rows,
    TILE: tl.constexpr, RUN: tl.constexpr, WIDTH_BLOCK: tl.constexpr, RANK_BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the products of a tile's rows with RANK_BLOCK rows of its slot's matrix, over one run of columns."""
    tile, run = tl.program_id(0), tl.program_id(1)
    slot = tl.load(tile_slots + tile)
    place = tile * TILE + tl.arange(0, TILE)
    row = tl.load(tile_rows + place)
    if (slot < num_slots) & (tl.max(row, 0) >= 0):
        at = tl.program_id(2) * RANK_BLOCK + tl.arange(0, RANK_BLOCK)
        matrix = a + (slot.to(tl.int64) * rank + at[None, :]) * width
        given = x + row.to(tl.int64)[:, None] * x_stride
        total = tl.zeros((TILE, RANK_BLOCK), tl.float32)
        for start in range(0, RUN, WIDTH_BLOCK):
            column = run * RUN + start + tl.arange(0, WIDTH_BLOCK)
            inside = column < width
            left = tl.load(given + column[None, :], mask=(row >= 0)[:, None] & inside[None, :], other=0.0)
            right = tl.load(matrix + column[:, None], mask=inside[:, None] & (at < rank)[None, :], other=0.0)
            total = dot(left, right.to(left.dtype), total)
        base = (run * total_rows + place.to(tl.int64)[:, None]) * rank
        tl.store(partial + base + at[None, :], total, mask=(at < rank)[None, :])


@triton.jit
def lora_up_kernel(
    y, b, tile_rows, tile_slots, partial, out, y_stride, num_slots, rank, width, total_rows, runs,
    TILE: tl.constexpr, RANK_BLOCK: tl.constexpr, OUT_BLOCK: tl.constexpr,
):  # fmt: skip
    """Write OUT_BLOCK columns of the rows of a tile: y plus the products with its slot's second matrix."""
    tile = tl.program_id(0)
    slot = tl.load(tile_slots + tile)
    place = tile * TILE + tl.arange(0, TILE)
    row = tl.load(tile_rows + place)
    if tl.max(row, 0) >= 0:
        column = tl.program_id(1) * OUT_BLOCK + tl.arange(0, OUT_BLOCK)
        inside = column < width
        total = tl.zeros((TILE, OUT_BLOCK), tl.float32)
        if slot < num_slots:
            for start in range(0, rank, RANK_BLOCK):
                at = start + tl.arange(0, RANK_BLOCK)
                down = tl.zeros((TILE, RANK_BLOCK), tl.float32)
                for run in range(runs):
                    base = (run * total_rows + place.to(tl.int64)[:, None]) * rank
                    down += tl.load(partial + base + at[None, :], mask=(at < rank)[None, :], other=0.0)
                matrix = b + (slot.to(tl.int64) * rank + at[:, None]) * width + column[None, :]
                up = tl.load(matrix, mask=(at < rank)[:, None] & inside[None, :], other=0.0)
                total = dot(narrow(down, y.dtype.element_ty), narrow(up, y.dtype.element_ty), total)
        there = (row >= 0)[:, None] & inside[None, :]
        total += load_wide(y + row.to(tl.int64)[:, None] * y_stride + column[None, :], there)
        store_narrow(out + row.to(tl.int64)[:, None] * width + column[None, :], total, there)


def _sort_rows(which: Any, slots: int, device: torch.device) -> SlotTiles:
    """Return the tiles of a step. Shapes follow from the numbers of rows and slots; nothing is read on the host."""
    given = torch.as_tensor(which, device=device).long()
    tiles = sort_into_tiles(torch.where(given < 0, slots, given), slots + 1)
    rows = torch.full((len(tiles.group_of) * TILE,), -1, dtype=torch.int32, device=device)
    rows.index_copy_(0, tiles.places, tiles.order.int())
    return SlotTiles(rows, tiles.group_of.int())


@launches(ops.add_lora)
def add_lora(y: Tensor, x: Tensor, which: Any, a: Any, b: Any) -> Tensor:
    """Return y plus the low-rank product of each row's adapter. `which` is a numpy array, or a tensor."""
    if isinstance(a, tuple):
        return torch_add_lora(y, x, which, a, b)
    y, x = view_rows(y), view_rows(x)
    a, b = a.contiguous(), b.contiguous()
    slots, rank, width = a.shape
    out = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if 0 in y.shape:
        return out
    tiles: SlotTiles = STEP.share("lora tiles", (which,), (slots,), lambda: _sort_rows(which, slots, x.device))
    num_tiles, total_rows = len(tiles.slots), len(tiles.rows)
    runs = triton.cdiv(width, RUN)
    rank_block = min(max(triton.next_power_of_2(rank), MIN_RANK_BLOCK), MAX_RANK_BLOCK)
    partial = torch.empty(runs, total_rows, rank, dtype=torch.float32, device=y.device)
    launch(
        lora_down_kernel,
        (num_tiles, runs, triton.cdiv(rank, rank_block)),
        *(x, a, tiles.rows, tiles.slots, partial, x.stride(0), slots, rank, width, total_rows),
        TILE=TILE,
        RUN=RUN,
        WIDTH_BLOCK=WIDTH_BLOCK,
        RANK_BLOCK=rank_block,
        num_warps=4,
    )
    launch(
        lora_up_kernel,
        (num_tiles, triton.cdiv(y.shape[1], OUT_BLOCK)),
        *(y, b, tiles.rows, tiles.slots, partial, out, y.stride(0), slots, rank, y.shape[1], total_rows, runs),
        TILE=TILE,
        RANK_BLOCK=rank_block,
        OUT_BLOCK=OUT_BLOCK,
        num_warps=4,
    )
    return out
