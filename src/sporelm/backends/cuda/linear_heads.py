"""Matrix multiplications with a matrix for each head: one launch reads each head's matrix once for a tile of tokens."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.cuda_weight import CudaWeight
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import dot, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.quantize_rows import quantize_rows
from sporelm.backends.cuda.row_views import view_rows
from sporelm.backends.torch.step_context import STEP
from sporelm.ops.quantize_rows import ROW_FORMATS

FEW_TOKENS, MANY_TOKENS = 16, 64  # of a program
MIN_TOKENS_OF_MANY = 128  # in a step, from which a program takes many
OUT_BLOCK = 64  # rows of a head's matrix
WIDTH_BYTES = 128  # of each row that a step reads


@triton.jit
def linear_heads_kernel(
    x, weight, out, x_stride, head_stride, tokens, heads, rows, width,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the products of a tile of tokens with some rows of a head's matrix."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    is_token, is_row = token < tokens, row < rows
    left_base = x + token.to(tl.int64)[:, None] * x_stride + head * head_stride
    right_base = weight + (head.to(tl.int64) * rows + row[:, None]) * width
    total = tl.zeros((TOKENS, ROWS), tl.float32)
    for start in range(0, width, WIDTH):
        column = start + tl.arange(0, WIDTH)
        inside = (column < width)[None, :]
        left = tl.load(left_base + column[None, :], mask=is_token[:, None] & inside, other=0.0)
        right = tl.load(right_base + column[None, :], mask=is_row[:, None] & inside, other=0.0)
        total = dot(left, tl.trans(right), total)
    place = out + (token.to(tl.int64)[:, None] * heads + head) * rows + row[None, :]
    store_narrow(place, total, is_token[:, None] & is_row[None, :])


@launches(ops.linear_heads)
def linear_heads(x: Tensor, weight: CudaWeight) -> Tensor:
    """Return the products of each head's last columns with the head's own matrix: [tokens, heads * out]."""
    heads, rows, width = weight.shape
    given = view_rows(x)
    head_stride = given.shape[1] // heads
    first = head_stride - width
    if weight.activation in ROW_FORMATS:
        parts = given.unflatten(1, (heads, -1))[..., first:].contiguous()
        given, head_stride, first = quantize_rows(parts, activation=weight.activation).values.flatten(1), width, 0
    given, matrices = given.to(weight.dtype), weight.values.contiguous()
    tokens = len(given)
    out = torch.empty(tokens, heads * rows, dtype=weight.dtype, device=x.device)
    is_large = tokens >= MIN_TOKENS_OF_MANY and not STEP.is_batch_invariant  # another tile, another order of sums
    tile = MANY_TOKENS if is_large else FEW_TOKENS
    launch(
        linear_heads_kernel,
        (triton.cdiv(tokens, tile), heads, triton.cdiv(rows, OUT_BLOCK)),
        *(given[:, first:], matrices, out, given.stride(0), head_stride, tokens, heads, rows, width),
        TOKENS=tile,
        ROWS=OUT_BLOCK,
        WIDTH=WIDTH_BYTES // weight.dtype.itemsize,
        num_warps=4,
    )
    return out
