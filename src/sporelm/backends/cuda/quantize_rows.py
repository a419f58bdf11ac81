"""Rows rounded for dot products in int8 or FP8, bit for bit as the reference rounds them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.fp8_rows import Fp8Rows, quantize_fp8_rows
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.product_splits import MAX_GEMV_TOKENS
from sporelm.backends.cuda.row_views import view_pairs
from sporelm.backends.torch.quantize_rows import RoundedRows
from sporelm.backends.torch.step_context import STEP
from sporelm.ops.quantize_rows import E4M3_128, ROW_FORMATS

BLOCK = 1024  # columns of a program
NUM_WARPS = 4
MAX_TINY: tl.constexpr = tl.constexpr(127 * 2.0**-128)  # of a group's largest value: 127 / largest is infinite


@triton.jit
def round_groups(values):
    """Round the groups [groups, GROUP] of float32 numbers: return whole numbers and the scale of each group.

    Only exact operations: `enable_fp_fusion=False` must keep the product and the sum after it apart.
    """
    is_nan = values != values
    largest = tl.max(tl.where(is_nan, 0.0, tl.abs(values)), 1)
    largest = tl.where(tl.max(is_nan.to(tl.int32), 1) > 0, float("nan"), largest)
    is_tiny = largest <= MAX_TINY  # the infinite inverse counts as 0
    inverse = tl.where(is_tiny, 0.0, tl.div_rn(127.0, tl.where(is_tiny, 1.0, largest)))
    scaled = values * inverse[:, None]
    rounded = (scaled + 12582912.0) - 12582912.0  # 1.5 * 2^23: to the nearest whole number, ties to even
    return rounded, tl.div_rn(largest, 127.0)


@triton.jit
def quantize_rows_kernel(x, out, x_stride, width, blocks, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Write the rounded values of BLOCK numbers of a row."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    group = tl.arange(0, BLOCK // GROUP)[:, None]
    column = tl.program_id(0) % blocks * BLOCK + group * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < width
    rounded, scales = round_groups(load_wide(x + row * x_stride + column, inside))
    store_narrow(out + row * width + column, rounded * scales[:, None], inside)


@launches(ops.quantize_rows)
def quantize_rows(x: Tensor, *, activation: str = "int8/32") -> RoundedRows | Fp8Rows:
    """Return rows rounded by groups: as the numbers that a product multiplies, or in FP8 for tensor cores."""
    if activation == E4M3_128.name:
        is_few = len(x) <= MAX_GEMV_TOKENS and not STEP.is_batch_invariant
        return quantize_fp8_rows(x, is_for_gemm=x.dim() == 2 and not is_few)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return RoundedRows(out)
    [view] = view_pairs(x)
    rows, width = view.shape
    blocks = triton.cdiv(width, BLOCK)
    launch(
        quantize_rows_kernel,
        (rows * blocks,),
        *(view, out, view.stride(0), width, blocks),
        GROUP=ROW_FORMATS[activation].values,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
        enable_fp_fusion=False,
    )
    return RoundedRows(out)
