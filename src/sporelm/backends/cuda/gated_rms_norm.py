"""RMS norm with a gate: a program for a few groups of columns."""

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.activation import apply_activation
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches

MAX_BLOCK = 8192  # columns that a program holds; wider groups are read twice
MIN_NUMBERS = 512  # of a program: it has several narrow groups
NUMBERS_PER_THREAD = 8


@triton.jit(do_not_specialize=["num_groups"])
def gated_norm_kernel(
    x, gate, weight, out, num_groups, groups, width, eps,
    HAS_OWN_WEIGHTS: tl.constexpr, IS_GATE_FIRST: tl.constexpr, ACTIVATION: tl.constexpr, IS_SPLIT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Normalize ROWS groups of `width` columns, and multiply them by the gate before or after."""
    group = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_group = group < num_groups
    base = (group * width)[:, None]
    if HAS_OWN_WEIGHTS:
        weight_base = (group % groups * width)[:, None]
    else:
        weight_base = tl.zeros((ROWS, 1), tl.int64)
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    values = squares
    opened = squares
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = is_group[:, None] & (column < width)
        values = load_wide(x + base + column, inside)
        if IS_GATE_FIRST or not IS_SPLIT:
            opened = load_wide(gate + base + column, inside)
            opened = apply_activation(opened, ACTIVATION)
        if IS_GATE_FIRST:
            values *= opened
        squares += tl.where(inside, values * values, 0.0)
    scale = (1 / tl.sqrt_rn(tl.sum(squares, 1) / width + eps))[:, None]
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = is_group[:, None] & (column < width)
        if IS_SPLIT:
            values = load_wide(x + base + column, inside)
            opened = load_wide(gate + base + column, inside)
            opened = apply_activation(opened, ACTIVATION)
            if IS_GATE_FIRST:
                values *= opened
        result = values * scale * load_wide(weight + weight_base + column, inside)
        if not IS_GATE_FIRST:
            result *= opened
        store_narrow(out + base + column, result, inside)


@launches(ops.gated_rms_norm)
def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, group: int, first: str, activation: str = "silu"
) -> Tensor:
    """Compute `ops.gated_rms_norm`. The order of a group's sums depends on its width alone."""
    x, gate, out = x.contiguous(), gate.contiguous(), x.new_empty(x.shape)
    block = min(triton.next_power_of_2(group), MAX_BLOCK)
    rows = max(1, MIN_NUMBERS // block)
    groups = x.shape[1] // group
    launch(
        gated_norm_kernel,
        (triton.cdiv(x.shape[0] * groups, rows),),
        *(x, gate, weight, out, x.shape[0] * groups, groups, group, eps),
        HAS_OWN_WEIGHTS=weight.dim() == 2,
        IS_GATE_FIRST=first == "gate",
        ACTIVATION=activation,
        IS_SPLIT=block < group,
        ROWS=rows,
        BLOCK=block,
        num_warps=min(max(rows * block // (32 * NUMBERS_PER_THREAD), 1), 16),
    )
    return out
