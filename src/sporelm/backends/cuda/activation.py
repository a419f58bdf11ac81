"""Activation functions, alone and as gates. Each computes in float32 and rounds once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.elementary_functions import expm1, half_erfc, log1p_of_share, tanh
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.row_views import view_pairs

BLOCK = 1024  # columns of a program
NUM_WARPS = 4


@triton.jit
def sigmoid_divisor(x):
    """Return 1 + exp(-x), at most 2^127: what a sigmoid divides by."""
    return 1.0 + tl.exp(tl.minimum(-x, 88.0))


@triton.jit
def apply_activation(x, KIND: tl.constexpr):
    """Return the activation function of float32 numbers."""
    if KIND == "silu":
        return x / sigmoid_divisor(x)
    elif KIND == "gelu":
        tail = half_erfc(tl.abs(x) * 0.70710678)
        return x * tl.where(x < 0, tail, 1.0 - tail)
    elif KIND == "gelu_tanh":
        return x / sigmoid_divisor(1.5957691 * (x + 0.044715 * x * x * x))
    elif KIND == "gelu_quick":
        return x / sigmoid_divisor(1.702 * x)
    elif KIND == "sigmoid":
        return 1.0 / sigmoid_divisor(x)
    elif KIND == "softplus":
        return tl.where(x < 0, 0.0, x) + log1p_of_share(tl.exp(-tl.abs(x)))
    elif KIND == "relu":
        return tl.where(x < 0, 0.0, x)
    elif KIND == "relu_squared":
        kept = tl.where(x < 0, 0.0, x)
        return kept * kept
    else:
        tl.static_assert(KIND == "linear")
        return x


@triton.jit
def activate_kernel(
    x, up, out, x_stride, up_stride, width, blocks, first, second,
    KIND: tl.constexpr, HAS_UP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a function of BLOCK numbers of a row, times those of `up` if there are any."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    values = load_wide(x + row * x_stride + column, inside)
    if KIND == "softcap":
        result = first * tanh(values / first)
    elif KIND == "clamped_swiglu":  # by comparisons: they keep NaN
        raised = load_wide(up + row * up_stride + column, inside)
        raised = tl.where(raised > second, second, tl.where(raised < -second, -second, raised))
        values = tl.where(values > second, second, values)
        result = (raised + 1.0) * (values / sigmoid_divisor(first * values))
    else:
        result = apply_activation(values, KIND)
        if HAS_UP:
            result *= load_wide(up + row * up_stride + column, inside)
    store_narrow(out + row * width + column, result, inside)


def launch_activation(x: Tensor, up: Tensor | None, kind: str, first: float = 0.0, second: float = 0.0) -> Tensor:
    """Return a function of x, times `up`: a kind of `ops.activate`, "softcap" or "clamped_swiglu"."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    views = view_pairs(x) if up is None else view_pairs(x, up)
    rows, width = views[0].shape
    blocks = triton.cdiv(width, BLOCK)
    launch(
        activate_kernel,
        (rows * blocks,),
        *(views[0], views[-1], out, views[0].stride(0), views[-1].stride(0), width, blocks, first, second),
        KIND=kind,
        HAS_UP=up is not None,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return out


@launches(ops.activate)
def activate(x: Tensor, *, kind: str) -> Tensor:
    """Return the activation function of each number."""
    return x if kind == "linear" else launch_activation(x, None, kind)


@launches(ops.activate_mul)
def activate_mul(gate: Tensor, up: Tensor, *, kind: str) -> Tensor:
    """Return activate(gate) * up. The product is rounded, not the function."""
    return launch_activation(gate, up, kind)


@launches(ops.softcap)
def softcap(x: Tensor, *, cap: float) -> Tensor:
    """Return cap * tanh(x / cap)."""
    return launch_activation(x, None, "softcap", cap)


@triton.jit
def xielu_kernel(x, alpha_p, alpha_n, beta, eps, out, x_stride, width, blocks, layer, BLOCK: tl.constexpr):
    """Write xIELU of BLOCK numbers of a row, with a layer's parameters."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    values = load_wide(x + row * x_stride + column, inside)
    slope, least = tl.load(beta + layer), tl.load(eps + layer)
    rise = apply_activation(tl.load(alpha_p + layer), "softplus")
    fall = slope + apply_activation(tl.load(alpha_n + layer), "softplus")
    below = fall * (expm1(tl.where(values > least, least, values)) - values)
    result = tl.where(values > 0, rise * values * values, below) + slope * values
    store_narrow(out + row * width + column, result, inside)


@launches(ops.xielu)
def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor, *, layer: int) -> Tensor:
    """Return xIELU with a layer's parameters, which are read on the device."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    [view] = view_pairs(x)
    rows, width = view.shape
    blocks = triton.cdiv(width, BLOCK)
    parameters = (each.contiguous() for each in (alpha_p, alpha_n, beta, eps))
    launch(
        xielu_kernel,
        (rows * blocks,),
        *(view, *parameters, out, view.stride(0), width, blocks, layer),
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return out
