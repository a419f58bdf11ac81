"""Griffin's gated linear recurrent unit: a program for each slice of channels of each sequence, row by row.

Results do not depend on how a sequence is cut into steps.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.activation import apply_activation
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.recurrent_state import find_sequences, read_sequence, softplus
from sporelm.ops.gated_lru import SHARPNESS

CHANNELS = 64  # of a program
_SHARPNESS: tl.constexpr = tl.constexpr(SHARPNESS)


@triton.jit
def unit_rows_kernel(
    x, recurrence_gate, input_gate, decay, recurrence_bias, input_bias, state, table, out, channels,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Go through a sequence's rows with one number of state for each of a slice of channels."""
    slot, first, rows, begins = read_sequence(table, tl.program_id(1))
    if rows == 0:
        return
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    held = state + slot * channels + channel
    h = tl.load(held, mask=inside & (begins == 0), other=0.0)
    rate = softplus(load_wide(decay + channel, inside)) * _SHARPNESS
    recurrence_offset = load_wide(recurrence_bias + channel, inside)
    input_offset = load_wide(input_bias + channel, inside)
    place = first * channels + channel
    # A row's numbers are loaded while the row before is computed.
    next_value, next_kept = load_wide(x + place, inside), load_wide(recurrence_gate + place, inside)
    next_gate = load_wide(input_gate + place, inside)
    for row in range(rows):
        value, kept, gate = next_value, next_kept, next_gate
        following = place + channels
        is_more = inside & (row + 1 < rows)
        next_value, next_kept = load_wide(x + following, is_more), load_wide(recurrence_gate + following, is_more)
        next_gate = load_wide(input_gate + following, is_more)
        log_decay = rate * apply_activation(kept + recurrence_offset, "sigmoid")
        gain = tl.sqrt_rn(1 - tl.exp(2 * log_decay))
        gain = tl.where(begins & (row == 0), 1.0, gain)
        h = tl.exp(log_decay) * h + gain * value * apply_activation(gate + input_offset, "sigmoid")
        store_narrow(out + place, h, inside)
        place = following
    tl.store(held, h, mask=inside)


@launches(ops.gated_lru)
def gated_lru(
    x: Tensor,
    recurrence_gate: Tensor,
    input_gate: Tensor,
    decay: Tensor,
    recurrence_bias: Tensor,
    input_bias: Tensor,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
) -> Tensor:
    """Compute `ops.gated_lru`."""
    x, recurrence_gate, input_gate = (each.contiguous() for each in (x, recurrence_gate, input_gate))
    channels = x.shape[1]
    sequences = find_sequences(starts, lengths, states, x)
    out = sequences.new_results(x, channels)
    launch(
        unit_rows_kernel,
        (triton.cdiv(channels, CHANNELS), len(sequences.every)),
        *(x, recurrence_gate, input_gate, decay, recurrence_bias, input_bias, state, sequences.every, out, channels),
        BLOCK=CHANNELS,
        num_warps=1,
    )
    return out
