"""AltUp's streams, and the sparse activation beside them. What happens once in a model is left to torch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.row_views import view_rows
from sporelm.backends.torch.altup_streams import gaussian_topk as torch_gaussian_topk

BLOCK = 512  # columns of a program
NUM_WARPS = 4
MAX_ROW_BLOCK = 16384  # columns that a program holds; wider rows are left to torch
VALUES_PER_THREAD = 16


@triton.jit
def altup_predict_kernel(x, coefs, out, count, width, blocks, BLOCK: tl.constexpr):
    """Write BLOCK columns of a stream of a row: the stream plus the sum of all, each times its coefficient."""
    pair = tl.program_id(0) // blocks
    row, stream = (pair // count).to(tl.int64), pair % count
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    base = row * count * width + column
    total = tl.zeros((BLOCK,), tl.float32)
    for other in range(count):
        coef = tl.load(coefs + (row * count + stream) * count + other).to(tl.float32)
        total += coef * load_wide(x + base + other * width, inside)
    store_narrow(out + base + stream * width, load_wide(x + base + stream * width, inside) + total, inside)


@launches(ops.altup_predict)
def altup_predict(x: Tensor, coefs: Tensor) -> Tensor:
    """Return the prediction of each stream before a layer."""
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    rows, count, width = x.shape
    blocks = triton.cdiv(width, BLOCK)
    launch(
        altup_predict_kernel,
        (rows * count * blocks,),
        *(x, coefs.contiguous(), out, count, width, blocks),
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return out


@triton.jit
def altup_first_kernel(
    predictions, activated, coefs, scale, out, stride, activated_stride, coef_stride, width, blocks, BLOCK: tl.constexpr
):  # fmt: skip
    """Write BLOCK columns of the first corrected stream of a row, scaled."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    first = load_wide(predictions + row * stride + column, inside)
    difference = load_wide(activated + row * activated_stride + column, inside) - first
    coef = tl.load(coefs + row * coef_stride).to(tl.float32) + 1.0
    result = (first + difference * coef) * load_wide(scale + column, inside)
    store_narrow(out + row * width + column, result, inside)


@launches(ops.altup_first)
def altup_first(predictions: Tensor, activated: Tensor, coefs: Tensor, scale: Tensor) -> Tensor:
    """Return the first corrected stream times a learned number for each column."""
    first, given = view_rows(predictions[:, 0]), view_rows(activated)
    rows, width = given.shape
    out = torch.empty(rows, width, dtype=activated.dtype, device=activated.device)
    blocks = triton.cdiv(width, BLOCK)
    launch(
        altup_first_kernel,
        (rows * blocks,),
        *(first, given, coefs, scale, out, first.stride(0), given.stride(0), coefs.stride(0), width, blocks),
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return out


@triton.jit
def altup_correct_kernel(
    predictions, activated, coefs, added, out, activated_stride, added_stride, count, width, blocks, BLOCK: tl.constexpr
):  # fmt: skip
    """Write BLOCK columns of all corrected streams of a row."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    base = row * count * width + column
    difference = load_wide(activated + row * activated_stride + column, inside)
    difference -= load_wide(predictions + base, inside)
    extra = load_wide(added + row * added_stride + column, inside)
    for stream in range(count):
        coef = tl.load(coefs + row * count + stream).to(tl.float32) + 1.0
        result = load_wide(predictions + base + stream * width, inside) + difference * coef
        result = tl.where(stream > 0, result + extra, result)
        store_narrow(out + base + stream * width, result, inside)


@launches(ops.altup_correct)
def altup_correct(predictions: Tensor, activated: Tensor, coefs: Tensor, added: Tensor) -> Tensor:
    """Return all streams corrected by what the first one's prediction lacks."""
    predictions = predictions.contiguous()
    given, extra, out = view_rows(activated), view_rows(added), torch.empty_like(predictions)
    rows, count, width = predictions.shape
    blocks = triton.cdiv(width, BLOCK)
    launch(
        altup_correct_kernel,
        (rows * blocks,),
        *(predictions, given, coefs.contiguous(), extra, out),
        *(given.stride(0), extra.stride(0), count, width, blocks),
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return out


@triton.jit
def gaussian_topk_kernel(x, out, stride, width, factor, BLOCK: tl.constexpr):
    """Write the part of each number of a row above its mean plus `factor` standard deviations."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    values = load_wide(x + row * stride + column, inside)
    mean = tl.sum(values, 0) / width
    centred = tl.where(inside, values - mean, 0.0)
    bound = mean + tl.sqrt_rn(tl.sum(centred * centred, 0) / width) * factor
    store_narrow(out + row * width + column, tl.where(values < bound, 0.0, values - bound), inside)


@launches(ops.gaussian_topk)
def gaussian_topk(x: Tensor, *, factor: float) -> Tensor:
    """Return the part of each number above the row's mean plus `factor` standard deviations; zero elsewhere."""
    given = view_rows(x)
    rows, width = given.shape
    block = triton.next_power_of_2(width)
    if block > MAX_ROW_BLOCK:
        return torch_gaussian_topk(x, factor=factor)
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    warps = min(max(block // (32 * VALUES_PER_THREAD), 1), 16)
    launch(gaussian_topk_kernel, (rows,), given, out, given.stride(0), width, factor, BLOCK=block, num_warps=warps)
    return out
