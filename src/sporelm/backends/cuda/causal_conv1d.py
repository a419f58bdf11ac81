"""Causal convolution. Few rows: a program for each sequence and slice of channels. Many: one for each piece of rows."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.activation import apply_activation
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.recurrent_state import find_sequences, read_piece, read_sequence

CHANNELS = 256  # of a program
PIECE_CHANNELS = 64
PIECE_WARPS = 8


@triton.jit
def keep_last_rows(given, held, rows, begins, channels, inside, TAPS: tl.constexpr):
    """Move the rows of a state up, and put a sequence's last rows behind them."""
    KEPT: tl.constexpr = triton.next_power_of_2(TAPS - 1)
    tap = tl.arange(0, KEPT)[:, None]
    place = rows + tap - (TAPS - 1)
    is_kept = (tap < TAPS - 1) & inside[None, :]
    values = load_wide(given[None, :] + place * channels, is_kept & (place >= 0))
    values += tl.load(held[None, :] + (rows + tap) * channels, mask=is_kept & (place < 0) & (begins == 0), other=0.0)
    tl.debug_barrier()  # other threads may still read what is overwritten
    tl.store(held[None, :] + tap * channels, values, mask=is_kept)


@triton.jit
def convolve_rows_kernel(
    x, weight, bias, state, table, out, channels,
    TAPS: tl.constexpr, HAS_BIAS: tl.constexpr, IS_SILU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Convolve a few rows of a sequence, and update its state, for a slice of channels."""
    slot, first, rows, begins = read_sequence(table, tl.program_id(1))
    if rows == 0:
        return
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    held = state + slot * (TAPS - 1) * channels + channel
    given = x + first * channels + channel
    for row in range(rows):
        total = tl.zeros((BLOCK,), tl.float32)
        for tap in tl.static_range(TAPS):
            place = row + tap - (TAPS - 1)
            value = load_wide(given + place * channels, inside & (place >= 0))
            value += tl.load(
                held + (place + (TAPS - 1)) * channels, mask=inside & (place < 0) & (begins == 0), other=0.0
            )
            total += load_wide(weight + tap * channels + channel, inside) * value
        if HAS_BIAS:
            total += load_wide(bias + channel, inside)
        if IS_SILU:
            total = apply_activation(total, "silu")
        store_narrow(out + (first + row) * channels + channel, total, inside)
    keep_last_rows(given, held, rows, begins, channels, inside, TAPS)


@triton.jit
def convolve_piece_kernel(
    x, weight, bias, state, chunks, out, channels,
    TAPS: tl.constexpr, HAS_BIAS: tl.constexpr, IS_SILU: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Convolve a piece of a sequence's rows for a slice of channels. Only reads the state."""
    slot, begins, sequence_first, _, first, count, written = read_piece(chunks, tl.program_id(1))
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    row = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tap in tl.static_range(TAPS):
        place = (first - sequence_first) + row + tap - (TAPS - 1)
        is_given = (place >= 0) & (row < count)
        value = load_wide(
            x + (sequence_first + place)[:, None] * channels + channel[None, :], is_given[:, None] & inside[None, :]
        )
        if first == sequence_first and not begins:
            is_held = place < 0
            value += tl.load(
                state + (slot * (TAPS - 1) + place + (TAPS - 1))[:, None] * channels + channel[None, :],
                mask=is_held[:, None] & inside[None, :],
                other=0.0,
            )
        total += load_wide(weight + tap * channels + channel, inside)[None, :] * value
    if HAS_BIAS:
        total += load_wide(bias + channel, inside)[None, :]
    if IS_SILU:
        total = apply_activation(total, "silu")
    total = tl.where((row < count)[:, None], total, 0.0)
    is_written = (row < written)[:, None] & inside[None, :]
    store_narrow(out + (first + row)[:, None] * channels + channel[None, :], total, is_written)


@triton.jit
def keep_rows_kernel(x, state, table, channels, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the last rows of a sequence to its state, for a slice of channels."""
    slot, first, rows, begins = read_sequence(table, tl.program_id(1))
    if rows == 0:
        return
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    held = state + slot * (TAPS - 1) * channels + channel
    given = x + first * channels + channel
    keep_last_rows(given, held, rows, begins, channels, inside, TAPS)


@launches(ops.causal_conv1d)
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    starts: Any,
    lengths: Any,
    states: Any,
    *,
    silu: bool = True,
) -> Tensor:
    """Compute `ops.causal_conv1d`. A row's result does not depend on where its sequence is cut."""
    channels, taps = x.shape[1], len(weight)
    x = x.contiguous()
    sequences = find_sequences(starts, lengths, states, x)
    out = sequences.new_results(x, channels)
    slices = triton.cdiv(channels, CHANNELS)
    flags = {"TAPS": taps, "HAS_BIAS": bias is not None, "IS_SILU": silu}
    launch(
        convolve_rows_kernel,
        (slices, len(sequences.few)),
        *(x, weight, bias, state, sequences.few, out, channels),
        **flags,
        BLOCK=CHANNELS,
        num_warps=2,
    )
    launch(
        convolve_piece_kernel,
        (triton.cdiv(channels, PIECE_CHANNELS), len(sequences.chunks)),
        *(x, weight, bias, state, sequences.chunks, out, channels),
        **flags,
        ROWS=triton.next_power_of_2(sequences.chunk_rows),
        BLOCK=PIECE_CHANNELS,
        num_warps=PIECE_WARPS,
    )
    launch(
        keep_rows_kernel,
        (slices, len(sequences.many)),
        *(x, state, sequences.many, channels),
        TAPS=taps,
        BLOCK=CHANNELS,
        num_warps=2,
    )
    return out
