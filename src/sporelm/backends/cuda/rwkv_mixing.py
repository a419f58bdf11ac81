"""RWKV's token shift: one program mixes a slice of columns of a row in all ways."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.activation import apply_activation
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches

MAX_MIXES = 6  # of a launch
COLUMNS = 1024  # of a program
WARPS = 4


@triton.jit
def store_mix(out, mixes, more, x, delta, place, column, inside, HAS_MORE: tl.constexpr):
    """Write x + mix * delta, the mix of a column plus, if there are more, that of the place."""
    mix = load_wide(mixes + column, inside)
    if HAS_MORE:
        mix += load_wide(more + place, inside)
    store_narrow(out + place, x + mix * delta, inside)


@triton.jit
def mix_rows_kernel(
    x, delta,
    mix0, mix1, mix2, mix3, mix4, mix5,
    more0, more1, more2, more3, more4, more5,
    out0, out1, out2, out3, out4, out5,
    width, COUNT: tl.constexpr, HAS_MORE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write COUNT mixes of a slice of a row."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = tl.program_id(0).to(tl.int64) * width + column
    value, step = load_wide(x + place, inside), load_wide(delta + place, inside)
    store_mix(out0, mix0, more0, value, step, place, column, inside, HAS_MORE)
    if COUNT > 1:
        store_mix(out1, mix1, more1, value, step, place, column, inside, HAS_MORE)
    if COUNT > 2:
        store_mix(out2, mix2, more2, value, step, place, column, inside, HAS_MORE)
    if COUNT > 3:
        store_mix(out3, mix3, more3, value, step, place, column, inside, HAS_MORE)
    if COUNT > 4:
        store_mix(out4, mix4, more4, value, step, place, column, inside, HAS_MORE)
    if COUNT > 5:
        store_mix(out5, mix5, more5, value, step, place, column, inside, HAS_MORE)


@triton.jit
def blend_kernel(x, y, gate, out, count, BLOCK: tl.constexpr):
    """Write x + (y - x) * sigmoid(gate) for a slice of all numbers."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    value = load_wide(x + place, inside)
    blended = value + (load_wide(y + place, inside) - value) * apply_activation(
        load_wide(gate + place, inside), "sigmoid"
    )
    store_narrow(out + place, blended, inside)


@launches(ops.mix_rows)
def mix_rows(x: Tensor, delta: Tensor, mixes: Sequence[Tensor], more: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
    """Compute `ops.mix_rows`."""
    x, delta = x.contiguous(), delta.contiguous()
    results = [x.new_empty(x.shape) for _ in mixes]
    for first in range(0, len(mixes), MAX_MIXES):
        part = range(first, min(first + MAX_MIXES, len(mixes)))
        empty = [None] * (MAX_MIXES - len(part))
        launch(
            mix_rows_kernel,
            (x.shape[0], triton.cdiv(x.shape[1], COLUMNS)),
            *(x, delta),
            *(*(mixes[number] for number in part), *empty),
            *(*(more[number].contiguous() for number in part), *empty) if more else [None] * MAX_MIXES,
            *(*(results[number] for number in part), *empty),
            x.shape[1],
            COUNT=len(part),
            HAS_MORE=bool(more),
            BLOCK=COLUMNS,
            num_warps=WARPS,
        )
    return tuple(results)


@launches(ops.blend)
def blend(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """Compute `ops.blend`."""
    x, y, gate = (each.contiguous() for each in (x, y, gate))
    out = x.new_empty(x.shape)
    launch(
        blend_kernel,
        (triton.cdiv(x.numel(), COLUMNS),),
        *(x, y, gate, out, x.numel()),
        BLOCK=COLUMNS,
        num_warps=WARPS,
    )
    return out
