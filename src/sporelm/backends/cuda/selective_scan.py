"""Mamba 1's selective scan: a program for each slice of channels of each sequence, row by row.

Results do not depend on how a sequence is cut into steps.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.recurrent_state import find_sequences, read_sequence, softplus

CHANNELS = 32  # of a program


@triton.jit
def selective_rows_kernel(
    x, dt, b, c, decay, skip, state, table, out, channels,
    SIZE: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Go through a sequence's rows with the states of a slice of channels, each number with its own decay rate."""
    slot, first, rows, begins = read_sequence(table, tl.program_id(1))
    if rows == 0:
        return
    k = tl.arange(0, K)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    has_k, inside = k < SIZE, channel < channels
    tile = has_k[:, None] & inside[None, :]
    places = state + slot * SIZE * channels + k[:, None] * channels + channel[None, :]
    s = tl.load(places, mask=tile & (begins == 0), other=0.0)
    rates = tl.load(decay + k[:, None] * channels + channel[None, :], mask=tile, other=0.0)
    skipped = load_wide(skip + channel, inside)
    x += first * channels + channel
    dt += first * channels + channel
    out += first * channels + channel
    b += first * SIZE + k
    c += first * SIZE + k
    # A row's numbers are loaded while the row before is computed.
    next_value, next_step = load_wide(x, inside), load_wide(dt, inside)
    next_write, next_read = load_wide(b, has_k), load_wide(c, has_k)
    for row in range(rows):
        value, step, write, read = next_value, softplus(next_step), next_write, next_read
        x += channels
        dt += channels
        b += SIZE
        c += SIZE
        is_more = row + 1 < rows
        next_value, next_step = load_wide(x, inside & is_more), load_wide(dt, inside & is_more)
        next_write, next_read = load_wide(b, has_k & is_more), load_wide(c, has_k & is_more)
        s = s * tl.exp(step[None, :] * rates) + write[:, None] * (step * value)[None, :]
        store_narrow(out, tl.sum(s * read[:, None], 0) + skipped * value, inside)
        out += channels
    tl.store(places, s, mask=tile)


@launches(ops.selective_scan)
def selective_scan(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    decay: Tensor,
    skip: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
) -> Tensor:
    """Compute `ops.selective_scan`."""
    x, dt, b, c = (each.contiguous() for each in (x, dt, b, c))
    size, channels = decay.shape
    sequences = find_sequences(starts, lengths, states, x)
    out = sequences.new_results(x, channels)
    launch(
        selective_rows_kernel,
        (triton.cdiv(channels, CHANNELS), len(sequences.every)),
        *(x, dt, b, c, decay, skip, state, sequences.every, out, channels),
        SIZE=size,
        K=triton.next_power_of_2(size),
        BLOCK=CHANNELS,
        num_warps=1,
    )
    return out
