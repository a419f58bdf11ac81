"""Matrix multiplications with the matrices of experts (grouped GEMM), and the weighted sum of the results.

A pair is a row and one of its experts. Few pairs are multiplied one by one: a program reads rows of its expert's matrix
in place, and is bound by memory. More pairs are sorted by expert on the device, and multiplied in tiles on the tensor
cores. Nothing is read on the host: grids follow from shapes alone.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.activation import activate_mul, apply_activation
from sporelm.backends.cuda.cuda_weight import CudaWeight, Planes, plane_args, plane_constants
from sporelm.backends.cuda.expert_tiles import sort_pairs
from sporelm.backends.cuda.formats.plane_format import BLOCK_WORDS
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import IS_INTERPRETED, dot, load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.product_splits import MIN_PROGRAMS
from sporelm.backends.cuda.quantized_linear import (
    THREADS,
    TILE_BLOCKS,
    TILE_ROWS,
    VECTOR_BYTES,
    activation_values,
    add_gemm_products,
    add_gemv_products,
    choose_interpreted_rows,
)
from sporelm.backends.cuda.row_views import view_rows
from sporelm.backends.torch.linear_experts import local_experts
from sporelm.backends.torch.quantize_rows import RoundedRows
from sporelm.backends.torch.step_context import STEP

MAX_GEMV_PAIRS = 64  # that are multiplied without tensor cores: each reads its matrix, in the cache or not
MAX_READS = 8  # of a thread for few pairs at a time, of 16 bytes each
MAX_READS_COMPLEX = 4  # likewise, of weights that are not `PlaneFormat.is_simple`, which take more registers
MAX_TILE_PAIRS = 64
MAX_GATED_TILE_PAIRS = 32  # with two sums for each result
MAX_PLAIN_TILE_PAIRS = 128  # for matrices of float numbers
PLAIN_COLUMNS = 64  # of a tile of those
COMBINED_BLOCK = 512  # columns of a program


# ---- GEMV: few pairs


@triton.jit
def expert_gemv_kernel(
    codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
    up_codes, up_extra, up_scales, up_supers,
    x, ids, bias, out, rows, width, row_pairs,
    LEVEL: tl.constexpr, STEPS: tl.constexpr, BITS: tl.constexpr, GROUP_FIELDS: tl.constexpr,
    GROUP_BLOCKS: tl.constexpr, SUPER_BLOCKS: tl.constexpr, HAS_OFFSETS: tl.constexpr, IS_LIFTED: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Multiply the row of x of one pair by ROWS rows of its expert's planes.

    `row_pairs` pairs after each other share a row of x. With a KIND, the planes are those of gates, beside those of
    `up`, and the result is activate(gate) * up.
    """
    pair = tl.program_id(1)
    first = tl.load(ids + pair).to(tl.int64) * rows
    member = tl.arange(0, ROWS)[None, :, None, None]
    row = first + tl.minimum(tl.program_id(0) * ROWS + member, rows - 1)
    column = tl.arange(0, BLOCKS)[None, None, :, None]
    x_rows = x + (pair // row_pairs).to(tl.int64) * width + tl.zeros((1, 1, 1, 1), tl.int32)
    is_token = tl.full((1, 1, 1, 1), 1, tl.int1)
    last = num_words // 16
    sums = tl.zeros((1, ROWS, BLOCKS, 4), tl.float32)
    up_sums = tl.zeros((1, ROWS, BLOCKS, 4), tl.float32)
    for start in range(0, last, BLOCKS):
        sums = add_gemv_products(
            sums, codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
            x_rows, row, is_token, start + column, last, width,
            LEVEL, STEPS, BITS, GROUP_FIELDS, GROUP_BLOCKS, SUPER_BLOCKS, HAS_OFFSETS, IS_LIFTED,
        )  # fmt: skip
        if KIND != "":
            up_sums = add_gemv_products(
                up_sums, up_codes, up_extra, up_scales, up_supers, table, num_words, num_scales, num_supers, magic,
                x_rows, row, is_token, start + column, last, width,
                LEVEL, STEPS, BITS, GROUP_FIELDS, GROUP_BLOCKS, SUPER_BLOCKS, HAS_OFFSETS, IS_LIFTED,
            )  # fmt: skip
    y = tl.sum(tl.sum(tl.sum(sums, 3), 2), 0)
    up_y = y
    if KIND != "":
        up_y = tl.sum(tl.sum(tl.sum(up_sums, 3), 2), 0)
    _write_pair(y, up_y, first, bias, out, pair, rows, ROWS, KIND)


@triton.jit
def float_expert_gemv_kernel(
    weight, up, x, ids, bias, out, rows, width, row_pairs,
    ROWS: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Do what `expert_gemv_kernel` does for matrices of float numbers. A thread reads VECTOR of a row at once."""
    pair = tl.program_id(1)
    first = tl.load(ids + pair).to(tl.int64) * rows
    row = (first + tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1))[:, None, None]
    lane = tl.arange(0, THREADS)[None, :, None] * VECTOR + tl.arange(0, VECTOR)[None, None, :]
    x_row = x + (pair // row_pairs).to(tl.int64) * width
    sums = tl.zeros((ROWS, THREADS), tl.float32)
    up_sums = tl.zeros((ROWS, THREADS), tl.float32)
    for start in range(0, width, THREADS * VECTOR):
        column = start + lane
        values = load_wide(x_row + column, column < width)
        sums += tl.sum(load_wide(weight + row * width + column, column < width) * values, 2)
        if KIND != "":
            up_sums += tl.sum(load_wide(up + row * width + column, column < width) * values, 2)
    y = tl.sum(sums, 1)
    up_y = y
    if KIND != "":
        up_y = tl.sum(up_sums, 1)
    _write_pair(y, up_y, first, bias, out, pair, rows, ROWS, KIND)


@triton.jit
def _write_pair(y, up, first, bias, out, pair, rows, ROWS: tl.constexpr, KIND: tl.constexpr):
    """Write ROWS results of a pair: its products with its bias, or gated."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if KIND != "":
        y = apply_activation(y, KIND) * up
    if bias is not None:
        y += load_wide(bias + first + row, row < rows)
    store_narrow(out + pair.to(tl.int64) * rows + row, y, row < rows)


def _run_gemv(
    x: Tensor, stored: Tensor | Planes, up: Tensor | Planes | None, ids: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """Write the products of each pair by itself to out [pairs, rows]."""
    (pairs, rows), width = out.shape, x.shape[1]
    kind = "" if up is None else "silu"
    if isinstance(stored, Planes):
        blocks = min(32, triton.next_power_of_2(stored.codes.shape[1] // BLOCK_WORDS))
        threads = blocks * 4
    else:
        vector = VECTOR_BYTES // stored.element_size()
        threads = min(THREADS, triton.next_power_of_2(triton.cdiv(width, vector)))
    num_warps = max(1, threads // 32)  # all rows of a program lie in each thread: it reads x once for all of them
    count = _choose_rows(stored, rows, pairs, 1 if up is None else 2)
    grid = (triton.cdiv(rows, count), pairs)
    common = (x, ids.int().contiguous(), bias, out, rows, width, pairs // len(x))
    if isinstance(stored, Planes):
        launch(
            expert_gemv_kernel,
            grid,
            *plane_args(stored),
            *_second_planes(up),
            *common,
            **plane_constants(stored.format),
            ROWS=count,
            BLOCKS=blocks,
            KIND=kind,
            num_warps=num_warps,
        )
    else:
        launch(
            float_expert_gemv_kernel,
            grid,
            *(stored, up),
            *common,
            ROWS=count,
            THREADS=threads,
            VECTOR=vector,
            KIND=kind,
            num_warps=num_warps,
        )


def _choose_rows(stored: Tensor | Planes, rows: int, pairs: int, matrices: int) -> int:
    """Return the rows of a program: the more, the more bytes are in flight; the fewer, the more programs."""
    if IS_INTERPRETED:
        return choose_interpreted_rows(rows, matrices * THREADS * VECTOR_BYTES)
    is_simple = isinstance(stored, Planes) and stored.format.is_simple
    count = MAX_READS if is_simple else MAX_READS_COMPLEX
    while count > matrices and rows * pairs * matrices < count * 2 * MIN_PROGRAMS:
        count //= 2
    return count // matrices


def _second_planes(up: Tensor | Planes | None) -> tuple[Tensor | None, ...]:
    """Return the planes of `up` that kernels take beside those of gates."""
    return (up.codes, up.extra, up.scales, up.supers) if isinstance(up, Planes) else (None,) * 4


# ---- grouped GEMM: tiles on tensor cores


@triton.jit
def grouped_gemm_kernel(
    codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
    up_codes, up_extra, up_scales, up_supers,
    x, order, places, bias, out, rows, width, row_pairs,
    LEVEL: tl.constexpr, STEPS: tl.constexpr, BITS: tl.constexpr, GROUP_FIELDS: tl.constexpr,
    GROUP_BLOCKS: tl.constexpr, SUPER_BLOCKS: tl.constexpr, HAS_OFFSETS: tl.constexpr, IS_LIFTED: tl.constexpr,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of PAIRS pairs by ROWS rows of their expert's planes on the tensor cores.

    With a KIND, the planes are those of gates, beside those of `up`, and the result is activate(gate) * up.
    """
    tile = tl.program_id(1)
    expert = tl.load(places + tile)
    if expert < 0:
        return
    pair, is_pair = _read_pairs(order, places, tile, PAIRS)
    first = expert.to(tl.int64) * rows
    source = (first + tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1))[:, None, None]
    x_rows = x + (pair // row_pairs).to(tl.int64)[None, :] * width
    last = num_words // 16
    y = tl.zeros((ROWS, PAIRS), tl.float32)
    up_y = tl.zeros((ROWS, PAIRS), tl.float32)
    for start in range(0, last, BLOCKS):
        y = add_gemm_products(
            y, codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
            x_rows, source, start, last, width,
            LEVEL, STEPS, BITS, GROUP_FIELDS, GROUP_BLOCKS, SUPER_BLOCKS, HAS_OFFSETS, IS_LIFTED, ROWS, BLOCKS,
        )  # fmt: skip
        if KIND != "":
            up_y = add_gemm_products(
                up_y, up_codes, up_extra, up_scales, up_supers, table, num_words, num_scales, num_supers, magic,
                x_rows, source, start, last, width,
                LEVEL, STEPS, BITS, GROUP_FIELDS, GROUP_BLOCKS, SUPER_BLOCKS, HAS_OFFSETS, IS_LIFTED, ROWS, BLOCKS,
            )  # fmt: skip
    _write_pair_tile(y, up_y, first, bias, out, pair, is_pair, rows, ROWS, KIND)


@triton.jit
def float_grouped_gemm_kernel(
    weight, up, x, order, places, bias, out, rows, width, row_pairs,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Do what `grouped_gemm_kernel` does for matrices of float numbers, COLUMNS columns at a time."""
    tile = tl.program_id(1)
    expert = tl.load(places + tile)
    if expert < 0:
        return
    pair, is_pair = _read_pairs(order, places, tile, PAIRS)
    first = expert.to(tl.int64) * rows
    source = (first + tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1))[:, None] * width
    x_rows = x + (pair // row_pairs).to(tl.int64)[None, :] * width
    y = tl.zeros((ROWS, PAIRS), tl.float32)
    up_y = tl.zeros((ROWS, PAIRS), tl.float32)
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < width
        right = tl.load(x_rows + column[:, None], mask=inside[:, None], other=0.0)
        left = tl.load(weight + source + column[None, :], mask=inside[None, :], other=0.0)
        y = dot(left.to(x.dtype.element_ty), right, y)
        if KIND != "":
            left = tl.load(up + source + column[None, :], mask=inside[None, :], other=0.0)
            up_y = dot(left.to(x.dtype.element_ty), right, up_y)
    _write_pair_tile(y, up_y, first, bias, out, pair, is_pair, rows, ROWS, KIND)


@triton.jit
def _read_pairs(order, places, tile, PAIRS: tl.constexpr):
    """Return the pairs of a tile, filled up with the last pair of its expert, and which of them are its own."""
    num_tiles = tl.num_programs(1)
    end = tl.load(places + 2 * num_tiles + tile)
    place = tl.load(places + num_tiles + tile) + tl.arange(0, PAIRS)
    return tl.load(order + tl.minimum(place, end - 1)), place < end


@triton.jit
def _write_pair_tile(y, up, first, bias, out, pair, is_pair, rows, ROWS: tl.constexpr, KIND: tl.constexpr):
    """Write products [rows, pairs] to the rows of their pairs, with their bias, or gated."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < rows
    if KIND != "":
        y = apply_activation(y, KIND) * up
    if bias is not None:
        y += load_wide(bias + first + row, is_row)[:, None]
    store_narrow(out + pair.to(tl.int64)[None, :] * rows + row[:, None], y, is_pair[None, :] & is_row[:, None])


def _tile_pairs(pairs: int, experts: int, stored: Tensor | Planes) -> int:
    """Return the pairs of a tile: about as many as an expert has."""
    most = MAX_TILE_PAIRS if isinstance(stored, Planes) else MAX_PLAIN_TILE_PAIRS
    return min(max(triton.next_power_of_2(triton.cdiv(pairs, experts)), 16), most)


def _run_grouped_gemm(
    x: Tensor, stored: Tensor | Planes, up: Tensor | Planes | None, ids: Tensor, bias: Tensor | None, out: Tensor,
    experts: int,
) -> None:  # fmt: skip
    """Write the products of pairs in tiles to out [pairs, rows]. The order of a sum depends on the width only."""
    (pairs, rows), width = out.shape, x.shape[1]
    kind = "" if up is None else "silu"
    tile = _tile_pairs(pairs, experts, stored)
    tiles = sort_pairs(ids, experts, tile)
    is_large = tile == MAX_PLAIN_TILE_PAIRS
    tile_rows = 2 * TILE_ROWS if is_large and up is None else TILE_ROWS
    grid = (triton.cdiv(rows, tile_rows), tiles.num_tiles)
    common = (x, tiles.order, tiles.places, bias, out, rows, width, pairs // len(x))
    sizes: dict[str, Any] = {"PAIRS": tile, "ROWS": tile_rows, "KIND": kind, "num_warps": 8 if is_large else 4}
    if isinstance(stored, Planes):
        constants = plane_constants(stored.format) | sizes
        launch(
            grouped_gemm_kernel,
            grid,
            *plane_args(stored),
            *_second_planes(up),
            *common,
            **constants,
            BLOCKS=TILE_BLOCKS if up is None else 1,
            num_stages=2,
        )
    else:
        launch(float_grouped_gemm_kernel, grid, stored, up, *common, **sizes, COLUMNS=PLAIN_COLUMNS, num_stages=3)


# ---- any number of pairs


def _uses_gemv(ids: Tensor, experts: int) -> bool:
    """Return whether so few pairs share an expert that each pair may read its expert's matrix separately."""
    tokens, k = ids.shape
    is_spread = tokens == 1 or tokens * k <= experts // 2
    return is_spread and tokens * k <= MAX_GEMV_PAIRS and not STEP.is_batch_invariant


def _is_fused(gate: CudaWeight, ids: Tensor) -> bool:
    """Return whether one launch multiplies by gates and by `up`. Large tiles of planes would take too many registers;
    in invariant steps they would round otherwise than small ones."""
    experts = gate.shape[0]
    if isinstance(gate.stored, Tensor) or _uses_gemv(ids, experts):
        return True
    return _tile_pairs(ids.numel(), experts, gate.stored) <= MAX_GATED_TILE_PAIRS and not STEP.is_batch_invariant


def _multiply_pairs(
    x: Tensor | RoundedRows, weight: CudaWeight, up: CudaWeight | None, ids: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return the product of each pair [tokens, k, rows], with `up` silu of it times that with `up`."""
    values = view_rows(activation_values(x, weight))
    experts, rows, _ = weight.shape
    out = torch.empty(*ids.shape, rows, dtype=values.dtype, device=values.device)
    if 0 in out.shape:
        return out
    flat = out.view(-1, rows)
    second = None if up is None else up.stored
    given = None if bias is None else bias.contiguous()
    if _uses_gemv(ids, experts):
        _run_gemv(values, weight.stored, second, ids, given, flat)
    else:
        _run_grouped_gemm(values, weight.stored, second, ids, given, flat, experts)
    return out


@launches(ops.linear_experts)
def linear_experts(
    x: Tensor | RoundedRows, weight: CudaWeight, ids: Tensor, bias: Tensor | None = None, *, first: int | None = None
) -> Tensor:
    """Return the products of rows with the matrices of their experts."""
    if first is not None:
        ids, is_foreign = local_experts(ids, first, weight.shape[0])
        return _multiply_pairs(x, weight, None, ids, bias).masked_fill_(is_foreign.unsqueeze(2), 0)
    return _multiply_pairs(x, weight, None, ids, bias)


@launches(ops.linear_experts_silu_mul)
def linear_experts_silu_mul(
    x: Tensor | RoundedRows, gate: CudaWeight, up: CudaWeight, ids: Tensor, *, first: int | None = None
) -> Tensor:
    """Return silu(gate's products) * up's products."""
    if first is not None:
        ids, is_foreign = local_experts(ids, first, gate.shape[0])
        return linear_experts_silu_mul(x, gate, up, ids).masked_fill_(is_foreign.unsqueeze(2), 0)
    values = activation_values(x, gate)
    if _is_fused(gate, ids):
        return _multiply_pairs(RoundedRows(values), gate, up, ids)
    products = (_multiply_pairs(RoundedRows(values), weight, None, ids) for weight in (gate, up))
    return activate_mul(*products, kind="silu")


# ---- sums


@triton.jit
def combine_experts_kernel(y, weights, bias, out, width, k, weight_stride, BLOCK: tl.constexpr):
    """Write BLOCK columns of the weighted sum of a token's rows."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in range(k):
        factor = tl.load(weights + token * weight_stride + slot).to(tl.float32)
        total += factor * load_wide(y + (token * k + slot) * width + column, inside)
    if bias is not None:
        total += load_wide(bias + column, inside)
    store_narrow(out + token * width + column, total, inside)


@launches(ops.combine_experts)
def combine_experts(y: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the weighted sum of each token's rows, added up in float32 in their order."""
    tokens, k = weights.shape
    rows, factors = y.contiguous(), view_rows(weights)
    width = y.shape[-1]
    out = torch.empty(tokens, width, dtype=y.dtype, device=y.device)
    block = min(triton.next_power_of_2(width), COMBINED_BLOCK)
    launch(
        combine_experts_kernel,
        (tokens, triton.cdiv(width, block)),
        *(rows, factors, bias, out, width, k, factors.stride(0)),
        BLOCK=block,
        num_warps=4 if block >= COMBINED_BLOCK else 1,
    )
    return out
