"""Matrix multiplications ("products") with weights of any format.

Few rows of x are multiplied by a GEMV kernel that reads each weight once and computes with plain float32 instructions.
It is bound by memory. More rows are multiplied in tiles on the tensor cores. With very many, weights are first
dequantized to memory in the type of activations, and torch's own matmul is used. If a step is batch-invariant (STEP),
tiles multiply any number of rows, and add up in one order.

Weights with the same input x become the rows of one matrix at their first use (`join_rows`).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from sporelm import ops
from sporelm.backends.cuda.activation import activate_mul, apply_activation
from sporelm.backends.cuda.cuda_weight import (
    CudaWeight,
    Planes,
    dequantize_rows,
    join_rows,
    plane_args,
    plane_constants,
)
from sporelm.backends.cuda.formats.plane_format import (
    BLOCK_WORDS,
    first_column,
    group_number,
    join_extra,
    super_number,
    thread_column,
)
from sporelm.backends.cuda.fp8_linear import run_fp8_gemm
from sporelm.backends.cuda.fp8_rows import Fp8Rows
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import IS_INTERPRETED, dot, load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.product_splits import MAX_GEMV_TOKENS, MIN_PROGRAMS, add_splits, split_columns, write_tile
from sporelm.backends.cuda.quantize_rows import quantize_rows
from sporelm.backends.torch.quantize_rows import RoundedRows
from sporelm.backends.torch.step_context import STEP
from sporelm.ops.quantize_rows import ROW_FORMATS

MAX_FLOAT_GEMV_TOKENS = 8  # as MAX_GEMV_TOKENS, for weights that are not quantized
MIN_DEQUANTIZED_TOKENS = 192  # from this many rows of x on, weights are dequantized first: as much as 30 rows cost
SCRATCH_VALUES = 1 << 26  # of a matrix that are dequantized to memory at a time
MAX_SUMS = 16  # of a thread for few tokens
MAX_SUMS_ONE_BIT = 4  # likewise, of 1-bit formats: a thread multiplies 128 weights of a row at a time
MIN_INTERPRETED_ROWS = 16  # of a program: Triton's interpreter takes time for each program
MAX_INTERPRETED_VALUES = 1 << 19  # of a tile under the interpreter: half of what Triton allows
THREADS = 128  # of a program for few tokens
VECTOR_BYTES = 16  # that a thread reads at once
TILE_ROWS, TILE_BLOCKS = 64, 2  # of weights in a program with tiles


# ---- GEMV: few tokens


@triton.jit
def add_gemv_products(
    sums, codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
    x_rows, row, is_token, block, last, width,
    LEVEL: tl.constexpr, STEPS: tl.constexpr, BITS: tl.constexpr, GROUP_FIELDS: tl.constexpr,
    GROUP_BLOCKS: tl.constexpr, SUPER_BLOCKS: tl.constexpr, HAS_OFFSETS: tl.constexpr, IS_LIFTED: tl.constexpr,
):  # fmt: skip
    """Return sums [tokens, rows, blocks, 4] plus the products of rows of x with blocks of words of rows of planes.

    Rows of x are given by pointers to their first number, and a block by its number, which must be before `last`.

    Dimensions of tiles: tokens, rows, blocks, threads of a block, words of a thread. A thread adds up its own words.
    """
    FIELDS: tl.constexpr = 32 // BITS
    lane = tl.arange(0, 4)[None, None, None, None, :]
    word = tl.arange(0, 4)[None, None, None, :] * 4
    spread = 1 + (magic & 1)  # 1, unknown to the compiler: it would divide loads of neighbouring scales otherwise
    inside = block < last
    where = tl.expand_dims(row * num_words + (block * 16 + word), 4) + lane
    is_read = tl.expand_dims(inside, 4) & (lane >= 0)
    words = tl.load(codes + where, mask=is_read, other=0)
    upper = words
    if extra is not None:
        upper = tl.load(extra + where, mask=is_read, other=0)
    factors = 0
    if supers is not None:
        place = super_number(block * spread, word, SUPER_BLOCKS)
        factors = tl.load(supers + row * num_supers + place, mask=inside, other=0)
    upper = join_extra(upper, factors, SUPER_BLOCKS)
    column_of_x = tl.expand_dims(block * (16 * FIELDS) + thread_column(table, word), 4) + lane
    is_column = tl.expand_dims(inside & is_token, 4)
    for group in tl.static_range(FIELDS // GROUP_FIELDS):
        for part in tl.static_range(GROUP_FIELDS):
            run = first_column(table, group * GROUP_FIELDS + part)
            values = load_wide(tl.expand_dims(x_rows, 4) + (column_of_x + run), is_column & (column_of_x + run < width))
            levels = LEVEL(words, upper, table, magic, group * GROUP_FIELDS + part)
            product = tl.sum(levels * values, 4)
            if IS_LIFTED and (group * GROUP_FIELDS + part) * BITS % 16 > 0:
                product *= 1.0 / (1 << ((group * GROUP_FIELDS + part) * BITS % 16))
            if part == 0:
                total = product
            else:
                total += product
            if HAS_OFFSETS:
                if part == 0:
                    total_x = tl.sum(values, 4)
                else:
                    total_x += tl.sum(values, 4)
        place = group_number(table, block * spread, group, word, FIELDS, GROUP_FIELDS, GROUP_BLOCKS)
        step, offset = STEPS(scales, factors, row, place, num_scales, magic, inside)
        sums += total * step
        if HAS_OFFSETS:
            sums += total_x * offset
    return sums


@triton.jit
def gemv_kernel(
    codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
    x, bias, out, tokens, rows, width, second, split_blocks,
    LEVEL: tl.constexpr, STEPS: tl.constexpr, BITS: tl.constexpr, GROUP_FIELDS: tl.constexpr,
    GROUP_BLOCKS: tl.constexpr, SUPER_BLOCKS: tl.constexpr, HAS_OFFSETS: tl.constexpr, IS_LIFTED: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Multiply TOKENS rows of x by ROWS rows of a matrix of planes, or by a part of their columns.

    With a KIND, the ROWS rows of a gate are followed by those of `second` rows below, and the result is
    activate(gate) * up. Without splits of the columns the result is written with its bias, else as float32 partial
    sums [splits, tokens, rows].
    """
    MATRICES: tl.constexpr = 2 if KIND != "" else 1
    token = tl.arange(0, TOKENS)[:, None, None, None]
    member = tl.arange(0, MATRICES * ROWS)[None, :, None, None]
    row = tl.minimum(tl.program_id(0) * ROWS + member % ROWS, rows - 1) + member // ROWS * second
    row = row.to(tl.int64)
    column = tl.arange(0, BLOCKS)[None, None, :, None]
    is_token = token < tokens
    x_rows = x + token * width
    sums = tl.zeros((TOKENS, MATRICES * ROWS, BLOCKS, 4), tl.float32)
    first = tl.program_id(1) * split_blocks
    last = tl.minimum(first + split_blocks, num_words // 16)
    for start in range(first, last, BLOCKS):
        sums = add_gemv_products(
            sums, codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
            x_rows, row, is_token, start + column, last, width,
            LEVEL, STEPS, BITS, GROUP_FIELDS, GROUP_BLOCKS, SUPER_BLOCKS, HAS_OFFSETS, IS_LIFTED,
        )  # fmt: skip
    y = tl.sum(tl.sum(sums, 3), 2)
    _write_products(y, bias, out, tokens, rows, TOKENS, ROWS, KIND)


@triton.jit
def float_gemv_kernel(
    weight, x, bias, out, tokens, rows, width, second, split_columns,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Do what `gemv_kernel` does for a matrix of float numbers. A thread reads VECTOR of a row at once."""
    MATRICES: tl.constexpr = 2 if KIND != "" else 1
    token = tl.arange(0, TOKENS)[:, None, None, None]
    member = tl.arange(0, MATRICES * ROWS)[None, :, None, None]
    row = tl.minimum(tl.program_id(0) * ROWS + member % ROWS, rows - 1) + member // ROWS * second
    row = row.to(tl.int64)
    lane = tl.arange(0, THREADS)[None, None, :, None] * VECTOR + tl.arange(0, VECTOR)[None, None, None, :]
    is_token = token < tokens
    sums = tl.zeros((TOKENS, MATRICES * ROWS, THREADS), tl.float32)
    first = tl.program_id(1) * split_columns
    last = tl.minimum(first + split_columns, width)
    for start in range(first, last, THREADS * VECTOR):
        column = start + lane
        inside = column < last
        weights = load_wide(weight + row * width + column, inside)
        values = load_wide(x + token * width + column, inside & is_token)
        sums += tl.sum(weights * values, 3)
    _write_products(tl.sum(sums, 2), bias, out, tokens, rows, TOKENS, ROWS, KIND)


@triton.jit
def _write_products(y, bias, out, tokens, rows, TOKENS: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr):
    """Write products [TOKENS, ROWS], of gate and up with a KIND: the result, or partial sums of both for splits."""
    token = tl.arange(0, TOKENS)[:, None]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :]
    inside = (token < tokens) & (row < rows)
    split = tl.program_id(1).to(tl.int64)
    if KIND != "":
        gate, up = tl.split(tl.permute(tl.reshape(y, (TOKENS, 2, ROWS)), (0, 2, 1)))
        if tl.num_programs(1) == 1:
            store_narrow(out + token * rows + row, apply_activation(gate, KIND) * up, inside)
        else:
            place = out + (split * tokens + token) * (2 * rows) + row
            tl.store(place, gate, mask=inside)
            tl.store(place + rows, up, mask=inside)
    else:
        if bias is not None:
            y += load_wide(bias + row, row < rows)
        store_narrow(out + (split * tokens + token) * rows + row, y, inside)


def _choose_rows(stored: Tensor | Planes, rows: int, tokens: int, matrices: int) -> int:
    """Return the rows of a program: the more, the less often x is read; the fewer, the more programs."""
    if IS_INTERPRETED:
        return choose_interpreted_rows(rows, tokens * matrices * THREADS * VECTOR_BYTES)
    is_simple = isinstance(stored, Planes) and stored.format.is_simple
    max_sums = MAX_SUMS_ONE_BIT if isinstance(stored, Planes) and stored.format.bits == 1 else MAX_SUMS
    for count in (8, 4, 2) if is_simple else (4, 2):  # with more, others use too many registers
        if rows * matrices >= count * 2 * MIN_PROGRAMS and tokens * count <= max_sums:
            return count // matrices
    return 1


def choose_interpreted_rows(rows: int, row_values: int, min_rows: int = MIN_INTERPRETED_ROWS) -> int:
    """Return the rows of a program under Triton's interpreter: an eighth of the matrix, so that small ones take several
    programs too, unless tiles with `row_values` for each row would be too large."""
    return max(min_rows, min(triton.next_power_of_2(rows) // 8, MAX_INTERPRETED_VALUES // row_values))


def run_gemv(
    x: Tensor, stored: Tensor | Planes, rows: int, bias: Tensor | None = None, kind: str = "", second: int = 0
) -> Tensor:
    """Return x @ weight.T + bias for few rows x; with a kind activate(x @ gate.T) * (x @ up.T), where `up` begins
    `second` rows below the gate."""
    tokens, width = x.shape
    count = _choose_rows(stored, rows, triton.next_power_of_2(tokens), 2 if kind else 1)
    programs = triton.cdiv(rows, count)
    if isinstance(stored, Planes):
        unit, columns = (
            min(32, triton.next_power_of_2(stored.codes.shape[1] // BLOCK_WORDS)),
            stored.codes.shape[1] // BLOCK_WORDS,
        )
    else:
        vector = VECTOR_BYTES // stored.element_size()
        unit, columns = THREADS * vector, width
    chosen = split_columns(programs, columns, unit)
    out = x.new_empty(tokens, rows)
    partial = out
    if chosen.splits > 1:
        partial = x.new_empty(chosen.splits, tokens, rows * (2 if kind else 1), dtype=torch.float32)
    common = (x, None if partial is not out else bias, partial, tokens, rows, width, second, chosen.size)
    sizes: dict[str, Any] = {"TOKENS": triton.next_power_of_2(tokens), "ROWS": count, "KIND": kind}
    if isinstance(stored, Planes):
        constants = plane_constants(stored.format) | sizes
        launch(
            gemv_kernel,
            (programs, chosen.splits),
            *plane_args(stored),
            *common,
            **constants,
            BLOCKS=unit,
            num_warps=max(1, unit // 8),  # four threads a block: each reads four numbers of x at once
        )
    else:
        launch(
            float_gemv_kernel,
            (programs, chosen.splits),
            stored,
            *common,
            **sizes,
            THREADS=THREADS,
            VECTOR=vector,
            num_warps=4,
        )
    if chosen.splits > 1:
        add_splits(partial, bias, out, kind)
    return out


# ---- GEMM: tiles on tensor cores


@triton.jit
def add_gemm_products(
    total, codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
    x_rows, source, start, last, width,
    LEVEL: tl.constexpr, STEPS: tl.constexpr, BITS: tl.constexpr, GROUP_FIELDS: tl.constexpr,
    GROUP_BLOCKS: tl.constexpr, SUPER_BLOCKS: tl.constexpr, HAS_OFFSETS: tl.constexpr, IS_LIFTED: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Return total [rows, tokens] plus the products of the rows `source` [rows, 1, 1] of planes with rows of x, whose
    pointers are `x_rows` [1, tokens]: of BLOCKS blocks from `start` on, before `last`."""
    FIELDS: tl.constexpr = 32 // BITS
    COLUMNS: tl.constexpr = 16 * BLOCKS
    word = tl.arange(0, 4)[None, None, :] * 4
    lane = tl.arange(0, 4)[None, None, None, :]
    inner = tl.arange(0, COLUMNS)
    spread = 1 + (magic & 1)  # as in add_gemv_products
    block = start + tl.arange(0, BLOCKS)[None, :, None]
    inside = block < last
    where = tl.expand_dims(source * num_words + (block * 16 + word), 3) + lane
    is_read = tl.expand_dims(inside, 3) & (lane >= 0)
    words = tl.load(codes + where, mask=is_read, other=0)
    upper = words
    if extra is not None:
        upper = tl.load(extra + where, mask=is_read, other=0)
    factors = 0
    if supers is not None:
        place = super_number(block * spread, word, SUPER_BLOCKS)
        factors = tl.load(supers + source * num_supers + place, mask=inside, other=0)
    upper = join_extra(upper, factors, SUPER_BLOCKS)
    own = inner % 16 // 4 * 4  # the difference below is 0 where runs are of four: the compiler sees whole runs of 16
    column = (start + inner // 16) * (16 * FIELDS) + inner % 16 + (thread_column(table, own) - own)
    is_block = start + inner // 16 < last
    for group in tl.static_range(FIELDS // GROUP_FIELDS):
        place = group_number(table, block * spread, group, word, FIELDS, GROUP_FIELDS, GROUP_BLOCKS)
        step, offset = STEPS(scales, factors, source, place, num_scales, magic, inside)
        for part in tl.static_range(GROUP_FIELDS):
            run = first_column(table, group * GROUP_FIELDS + part)
            values = LEVEL(words, upper, table, magic, group * GROUP_FIELDS + part)
            if IS_LIFTED:  # a power of two: it changes no bits
                scale = step * (1.0 / (1 << ((group * GROUP_FIELDS + part) * BITS % 16)))
            else:
                scale = step
            values *= tl.expand_dims(scale, 3)
            if HAS_OFFSETS:
                values += tl.expand_dims(offset, 3)
            left = tl.reshape(values, (ROWS, COLUMNS)).to(x_rows.dtype.element_ty)
            is_column = is_block & (column + run < width)
            right = tl.load(x_rows + (column + run)[:, None], mask=is_column[:, None], other=0.0)
            total = dot(left, right, total)
    return total


@triton.jit
def gemm_kernel(
    codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
    x, bias, out, tokens, rows, width, segment_blocks, segments,
    LEVEL: tl.constexpr, STEPS: tl.constexpr, BITS: tl.constexpr, GROUP_FIELDS: tl.constexpr,
    GROUP_BLOCKS: tl.constexpr, SUPER_BLOCKS: tl.constexpr, HAS_OFFSETS: tl.constexpr, IS_LIFTED: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Multiply TOKENS rows of x by ROWS rows of a matrix of planes on the tensor cores.

    Columns are added up in segments of `segment_blocks` blocks, and those in order. A program multiplies `segments` of
    them. If there are several programs for the same results, they write float32 partial sums [splits, tokens, rows].
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    source = tl.minimum(row, rows - 1).to(tl.int64)[:, None, None]
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    x_rows = x + tl.minimum(token, tokens - 1).to(tl.int64)[None, :] * width
    num_blocks = num_words // 16
    y = tl.zeros((ROWS, TOKENS), tl.float32)
    for segment in range(tl.program_id(2) * segments, tl.program_id(2) * segments + segments):
        total = tl.zeros((ROWS, TOKENS), tl.float32)
        last = tl.minimum((segment + 1) * segment_blocks, num_blocks)
        for start in range(segment * segment_blocks, last, BLOCKS):
            total = add_gemm_products(
                total, codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic,
                x_rows, source, start, last, width,
                LEVEL, STEPS, BITS, GROUP_FIELDS, GROUP_BLOCKS, SUPER_BLOCKS, HAS_OFFSETS, IS_LIFTED, ROWS, BLOCKS,
            )  # fmt: skip
        y += total
    write_tile(y, bias, out, row, token, tokens, rows)


@triton.jit
def float_gemm_kernel(
    weight, x, bias, out, tokens, rows, width, segment_columns, segments,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Do what `gemm_kernel` does for a matrix of float numbers, `COLUMNS` columns at a time."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    weight_rows = weight + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * width
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    x_rows = x + tl.minimum(token, tokens - 1).to(tl.int64)[None, :] * width
    y = tl.zeros((ROWS, TOKENS), tl.float32)
    for segment in range(tl.program_id(2) * segments, tl.program_id(2) * segments + segments):
        total = tl.zeros((ROWS, TOKENS), tl.float32)
        last = tl.minimum((segment + 1) * segment_columns, width)
        for start in range(segment * segment_columns, last, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = column < last
            left = tl.load(weight_rows + column[None, :], mask=inside[None, :], other=0.0).to(x.dtype.element_ty)
            right = tl.load(x_rows + column[:, None], mask=inside[:, None], other=0.0)
            total = dot(left, right, total)
        y += total
    write_tile(y, bias, out, row, token, tokens, rows)


def run_gemm(x: Tensor, stored: Tensor | Planes, rows: int, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias in tiles. The order of a result's sum depends on the matrix's shape only."""
    tokens, width = x.shape
    tile_tokens = 16 if tokens <= 16 else 32 if tokens <= 32 else 64 if tokens <= 64 else 128
    if isinstance(stored, Planes):
        columns, unit = stored.codes.shape[1] // BLOCK_WORDS, TILE_BLOCKS
    else:
        columns, unit = width, 64
    tile_rows = choose_interpreted_rows(rows, 2 * tile_tokens, TILE_ROWS) if IS_INTERPRETED else TILE_ROWS
    tiles = triton.cdiv(rows, tile_rows)
    segments = split_columns(tiles, columns, unit * 4)
    grid_tokens = triton.cdiv(tokens, tile_tokens)
    splits = segments.splits if tiles * grid_tokens * 2 <= MIN_PROGRAMS else 1
    out = x.new_empty(tokens, rows)
    partial = out if splits == 1 else x.new_empty(splits, tokens, rows, dtype=torch.float32)
    common = (
        x,
        None if partial is not out else bias,
        partial,
        tokens,
        rows,
        width,
        segments.size,
        segments.splits // splits,
    )
    grid = (tiles, grid_tokens, splits)
    sizes: dict[str, Any] = {"TOKENS": tile_tokens, "ROWS": tile_rows, "num_warps": 4}
    if isinstance(stored, Planes):
        constants = plane_constants(stored.format) | sizes
        launch(gemm_kernel, grid, *plane_args(stored), *common, **constants, BLOCKS=unit, num_stages=2)
    else:
        launch(float_gemm_kernel, grid, stored, *common, **sizes, COLUMNS=unit, num_stages=3)
    if splits > 1:
        add_splits(partial, bias, out)
    return out


# ---- any number of tokens


def multiply_rows(x: Tensor | Fp8Rows, stored: Tensor | Planes, rows: int, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias by the kernel for this number of rows x."""
    tokens = len(x)
    if isinstance(x, Fp8Rows):
        assert isinstance(stored, Planes)
        return run_fp8_gemm(x, stored, rows, bias)
    if STEP.is_batch_invariant:
        return run_gemm(x, stored, rows, bias)
    if _uses_gemv(x, stored):
        return run_gemv(x, stored, rows, bias)
    if isinstance(stored, Tensor):
        return _add_bias(torch_linear(x, stored.to(x.dtype)), bias)
    if tokens < MIN_DEQUANTIZED_TOKENS:
        return run_gemm(x, stored, rows, bias)
    return _add_bias(_multiply_dequantized(x, stored, rows), bias)


def _add_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y.add_(bias)


def _multiply_dequantized(x: Tensor, planes: Planes, rows: int) -> Tensor:
    """Dequantize some rows at a time to memory, in the activation type, and multiply by them with torch's matmul."""
    step = max(1, SCRATCH_VALUES // planes.width)
    parts = [planes.narrow(start, min(step, rows - start)) for start in range(0, rows, step)]
    products = [torch_linear(x, dequantize_rows(part, None, x.dtype)) for part in parts]
    return products[0] if len(products) == 1 else torch.cat(products, dim=1)


def _uses_gemv(x: Tensor, stored: Tensor | Planes) -> bool:
    limit = MAX_FLOAT_GEMV_TOKENS if isinstance(stored, Tensor) else MAX_GEMV_TOKENS
    return len(x) <= limit and not STEP.is_batch_invariant


def activation_values(x: Tensor | RoundedRows | Fp8Rows, weight: CudaWeight) -> Tensor:
    """Return the numbers of x that a weight multiplies, in its activation type, as whole rows.

    They are float numbers for quantized formats too: whole multiples of the scales of their groups.
    """
    rounded = round_activations(x, weight)
    return rounded.values if isinstance(rounded, Fp8Rows) else rounded


def round_activations(x: Tensor | RoundedRows | Fp8Rows, weight: CudaWeight) -> Tensor | Fp8Rows:
    """Return the rows of x in the weight's activation type: FP8 rows for tensor cores, else plain values."""
    if isinstance(x, Tensor) and weight.activation in ROW_FORMATS:
        x = quantize_rows(x, activation=weight.activation)
    if isinstance(x, Fp8Rows):
        return x
    values = x if isinstance(x, Tensor) else x.values
    return values.to(weight.dtype).contiguous()


@launches(ops.linear)
def linear(x: Tensor | RoundedRows | Fp8Rows, weight: CudaWeight, bias: Tensor | None = None) -> Tensor:
    values = round_activations(x, weight)
    return multiply_rows(sort_columns(values, weight), weight.stored, weight.shape[0], bias)


def sort_columns(x: Tensor | Fp8Rows, weight: CudaWeight) -> Tensor | Fp8Rows:
    """Return x with its columns in the weight's stored order. FP8 rows are already in that order."""
    return x if isinstance(x, Fp8Rows) else weight.sort_columns(x)


@launches(ops.linear_group)
def linear_group(
    x: Tensor | RoundedRows | Fp8Rows, weights: tuple[CudaWeight, ...], biases: tuple[Any, ...] = ()
) -> tuple[Tensor, ...]:
    values = round_activations(x, weights[0])
    joined = join_rows(weights)
    given = biases or [None] * len(weights)
    if joined is None:
        return tuple(
            multiply_rows(sort_columns(values, weight), weight.stored, weight.shape[0], bias)
            for weight, bias in zip(weights, given, strict=True)
        )
    products = multiply_rows(values, joined.stored, sum(joined.sizes)).split(joined.sizes, dim=1)
    return tuple(y if bias is None else y.add_(bias) for y, bias in zip(products, given, strict=True))


@launches(ops.linear_silu_mul)
def linear_silu_mul(x: Tensor | RoundedRows | Fp8Rows, gate: CudaWeight, up: CudaWeight) -> Tensor:
    return linear_activate_mul(x, gate, up, kind="silu")


@launches(ops.linear_activate_mul)
def linear_activate_mul(x: Tensor | RoundedRows | Fp8Rows, gate: CudaWeight, up: CudaWeight, *, kind: str) -> Tensor:
    values = round_activations(x, gate)
    joined = join_rows((gate, up))
    rows = gate.shape[0]
    if joined is not None and not isinstance(values, Fp8Rows) and _uses_gemv(values, joined.stored):
        return run_gemv(values, joined.stored, rows, kind=kind, second=rows)
    rounded = RoundedRows(values) if isinstance(values, Tensor) else values
    return activate_mul(*linear_group(rounded, (gate, up)), kind=kind)
