"""Matrix multiplications of FP8 weights by rows of x in FP8 on the tensor cores (W8A8 with dynamic scales).

Rows of x have a scale for each 128 values, and so have rows of the weight. The products of 128 columns are multiplied
by both scales and added up in float32: some tensor cores add FP8 products with less precision (DeepSeek-AI 2024,
"DeepSeek-V3 Technical Report", 3.3.2).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.cuda_weight import Planes
from sporelm.backends.cuda.fp8_rows import GROUP, Fp8Rows
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.product_splits import MIN_PROGRAMS, ColumnSplit, add_splits, split_columns, write_tile
from sporelm.backends.torch.step_context import STEP

MIN_SEGMENT_GROUPS = 4  # groups that are summed before segments are added up
BAND = 8  # row tiles of the weight that run together, for reuse in L2 (grouped ordering)


@triton.jit
def fp8_gemm_kernel(
    codes, scales, x, x_scales, bias, out, tokens, rows, width, groups, segment_groups, segments,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Multiply TOKENS rows of x by ROWS rows of a matrix, both in FP8.

    Groups of columns are summed per segment, and segments in order. A program handles `segments` of them. If several
    programs share a result (split-K), they write float32 partial sums [splits, tokens, rows].
    """
    row_tile, token_tile = tl.swizzle2d(
        tl.program_id(0) // tl.cdiv(tokens, TOKENS), tl.program_id(0) % tl.cdiv(tokens, TOKENS),
        tl.cdiv(rows, ROWS), tl.cdiv(tokens, TOKENS), BAND,
    )  # fmt: skip
    row = row_tile * ROWS + tl.arange(0, ROWS)
    token = token_tile * TOKENS + tl.arange(0, TOKENS)
    column = tl.arange(0, GROUP)
    weight_row = tl.minimum(row, rows - 1).to(tl.int64)
    x_row = tl.minimum(token, tokens - 1).to(tl.int64)
    weight_pointers = codes + weight_row[:, None] * width + column[None, :]
    x_pointers = x + x_row[None, :] * width + column[:, None]
    y = tl.zeros((ROWS, TOKENS), tl.float32)
    for segment in range(tl.program_id(2) * segments, tl.program_id(2) * segments + segments):
        total = tl.zeros((ROWS, TOKENS), tl.float32)
        last = tl.minimum((segment + 1) * segment_groups, groups)
        for group in range(segment * segment_groups, last):
            weight_codes = tl.load(weight_pointers + group * GROUP)
            x_codes = tl.load(x_pointers + group * GROUP)
            weight_scale = tl.load(scales + weight_row * groups + group)
            x_scale = tl.load(x_scales + x_row * groups + group)
            total += tl.dot(weight_codes, x_codes) * (weight_scale[:, None] * x_scale[None, :])
        y += total
    write_tile(y, bias, out, row, token, tokens, rows)


def run_fp8_gemm(x: Fp8Rows, stored: Planes, rows: int, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias on FP8 tensor cores. In batch-invariant steps the order of a result's sum depends on
    the matrix's shape only."""
    (tokens, width), groups = x.shape, x.scales.shape[1]
    is_large = tokens > 64
    tile_tokens = 128 if is_large else max(16, triton.next_power_of_2(tokens))
    tile_rows = 128 if is_large else 64  # with fewer rows of x, more programs
    tiles = triton.cdiv(rows, tile_rows) * triton.cdiv(tokens, tile_tokens)
    segments = split_columns(triton.cdiv(rows, 64), groups, MIN_SEGMENT_GROUPS)
    splits = segments.splits if tiles * 2 <= MIN_PROGRAMS else 1
    if splits == 1 and not STEP.is_batch_invariant:
        segments = ColumnSplit(groups, 1)
    out = torch.empty(tokens, rows, dtype=x.dtype, device=x.codes.device)
    partial = out if splits == 1 else torch.empty(splits, tokens, rows, dtype=torch.float32, device=x.codes.device)
    launch(
        fp8_gemm_kernel,
        (tiles, 1, splits),
        *(stored.codes.view(torch.float8_e4m3fn), stored.scales, x.codes, x.scales),
        *(None if splits > 1 else bias, partial, tokens, rows, width, groups),
        *(segments.size, segments.splits // splits),
        TOKENS=tile_tokens,
        ROWS=tile_rows,
        GROUP=GROUP,
        BAND=BAND,
        num_warps=4 if tile_tokens <= 32 else 8,
        num_stages=3,
    )
    if splits > 1:
        add_splits(partial, bias, out)
    return out
