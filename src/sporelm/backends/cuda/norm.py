"""Norms of rows: a program for each row, or each head. Statistics are float32."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, narrow, store_narrow
from sporelm.backends.cuda.op_kernels import launches

MAX_BLOCK = 8192  # columns that a program holds; wider rows are read twice
VALUES_PER_THREAD = 8


@triton.jit
def rms_norm_kernel(
    x, residual, total, weight, out, groups, width, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_OWN_WEIGHTS: tl.constexpr, IS_SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write (x + residual) / rms * weight for one group of `width` numbers of a row, and x + residual to `total`."""
    row = tl.program_id(0).to(tl.int64)
    group = row % groups
    base = row * width
    weight_base = group * width if HAS_OWN_WEIGHTS else 0
    squares = tl.zeros((BLOCK,), tl.float32)
    values = squares
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        values = load_wide(x + base + column, inside)
        if HAS_RESIDUAL:
            values += load_wide(residual + base + column, inside)
            values = narrow(values, total.dtype.element_ty).to(tl.float32)
            store_narrow(total + base + column, values, inside)
        squares += values * values
    scale = 1 / tl.sqrt_rn(tl.sum(squares, 0) / width + eps)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        if IS_SPLIT:
            values = load_wide((total if HAS_RESIDUAL else x) + base + column, inside)
        store_narrow(out + base + column, values * scale * load_wide(weight + weight_base + column, inside), inside)


def _launch_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor | None]:
    width = weight.shape[-1]
    groups = x.shape[1] // width
    out = torch.empty_like(x)
    total = None if residual is None else torch.empty_like(x)
    block = min(triton.next_power_of_2(width), MAX_BLOCK)
    launch(
        rms_norm_kernel,
        (x.shape[0] * groups,),
        *(x, residual, total, weight, out, groups, width, eps),
        HAS_RESIDUAL=residual is not None,
        HAS_OWN_WEIGHTS=weight.dim() == 2,
        IS_SPLIT=block < width,
        BLOCK=block,
        num_warps=min(max(block // (32 * VALUES_PER_THREAD), 1), 16),
    )
    return out, total


@triton.jit
def _load_sum(x, residual, place, inside, like, HAS_RESIDUAL: tl.constexpr):
    """Return x, or x + residual as it is rounded in `like`."""
    values = load_wide(x + place, inside)
    if HAS_RESIDUAL:
        values = narrow(values + load_wide(residual + place, inside), like.dtype.element_ty).to(tl.float32)
    return values


@triton.jit
def layer_norm_kernel(
    x, residual, total, weight, bias, out, groups, width, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OWN_WEIGHTS: tl.constexpr,
    IS_SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write (x + residual - mean) / deviation * weight + bias for one group of `width` numbers of a row, and x +
    residual to `total`.

    The mean is taken twice, the second time of what the first one leaves: far from zero a rounded mean is too coarse.
    Rows that are wider than a block are read again for each sum.
    """
    row = tl.program_id(0).to(tl.int64)
    base = row * width
    weight_base = row % groups * width if HAS_OWN_WEIGHTS else 0
    sums = tl.zeros((BLOCK,), tl.float32)
    values = sums
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        values = _load_sum(x, residual, base + column, inside, out, HAS_RESIDUAL)
        if HAS_RESIDUAL:
            store_narrow(total + base + column, values, inside)
        sums += values
    mean = tl.sum(sums, 0) / width
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        if IS_SPLIT:
            values = _load_sum(x, residual, base + column, inside, out, HAS_RESIDUAL)
        sums += tl.where(inside, values - mean, 0.0)
    rest = tl.sum(sums, 0) / width
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        if IS_SPLIT:
            values = _load_sum(x, residual, base + column, inside, out, HAS_RESIDUAL)
        centred = tl.where(inside, (values - mean) - rest, 0.0)
        sums += centred * centred
    scale = 1 / tl.sqrt_rn(tl.sum(sums, 0) / width + eps)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        if IS_SPLIT:
            values = _load_sum(x, residual, base + column, inside, out, HAS_RESIDUAL)
        result = ((values - mean) - rest) * scale
        if HAS_WEIGHT:
            result *= load_wide(weight + weight_base + column, inside)
        if HAS_BIAS:
            result += load_wide(bias + weight_base + column, inside)
        store_narrow(out + base + column, result, inside)


def _launch_layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, width: int, eps: float
) -> tuple[Tensor, Tensor | None]:
    """Return the norm of each group of `width` columns, and x + residual. Vectors are of a group, or of whole rows."""
    groups = x.shape[1] // width
    out = torch.empty_like(x)
    total = None if residual is None else torch.empty_like(x)
    block = min(triton.next_power_of_2(width), MAX_BLOCK)
    launch(
        layer_norm_kernel,
        (x.shape[0] * groups,),
        *(x, residual, total, weight, bias, out, groups, width, eps),
        HAS_RESIDUAL=residual is not None,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        HAS_OWN_WEIGHTS=weight is not None and weight.numel() > width,
        IS_SPLIT=block < width,
        BLOCK=block,
        num_warps=min(max(block // (32 * VALUES_PER_THREAD), 1), 16),
    )
    return out, total


@launches(ops.layer_norm)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    """Return the rows, or their heads if each has a row of weights, less their mean, by their deviation."""
    width = x.shape[1] if weight is None else weight.shape[-1]
    return _launch_layer_norm(x.contiguous(), None, weight, bias, width, eps)[0]


@launches(ops.add_layer_norm)
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Return layer_norm(x + residual), and the sum itself."""
    out, total = _launch_layer_norm(x.contiguous(), residual.contiguous(), weight, bias, x.shape[1], eps)
    assert total is not None
    return out, total


@launches(ops.group_norm)
def group_norm(x: Tensor, weight: Tensor, bias: Tensor, *, group: int, eps: float) -> Tensor:
    """Return the groups of columns less their mean, by their deviation, scaled and shifted."""
    return _launch_layer_norm(x.contiguous(), None, weight, bias, group, eps)[0]


@launches(ops.rms_norm)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    return _launch_norm(x.contiguous(), None, weight, eps)[0]


@launches(ops.add_rms_norm)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    out, total = _launch_norm(x.contiguous(), residual.contiguous(), weight, eps)
    assert total is not None
    return out, total
