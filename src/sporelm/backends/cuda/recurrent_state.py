"""The sequences of a step with recurrent states, as tables on the device, and functions that kernels of states share.

Kernels go through a sequence's rows one by one, with a slice of the columns of its state in registers. A state is read
and written once a step. Columns are independent and a row's sums have one order, so a sequence's results do not depend
on how it is cut into steps, or on the other sequences.

In an unpadded step `starts`, `lengths` and `states` are numpy arrays. In a padded step (ADR 0045) they are on
the device: first D sequences of one row, then N blocks of `row_block` rows. Adjacent blocks with one slot are a chunk,
unless a block begins a sequence. A padded sequence has a dump slot, which no real sequence has. Results of padded rows
in blocks are 0.
"""

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.elementary_functions import log1p_of_share
from sporelm.backends.cuda.launch import launch
from sporelm.backends.torch.step_context import STEP

CHUNK = 64  # rows of a chunk that is computed at once
FEW_ROWS = 16  # a sequence with fewer rows in a step is computed row by row
SEQUENCE_COLUMNS, CHUNK_COLUMNS = 4, 8
VALUES_PER_THREAD = 32  # of a state
MAX_SLICE = 16  # columns of a state in one program: 64 bytes of a row
MIN_DESCRIBED = 512  # sequences that the kernel of tables is compiled for
_SEQUENCE_COLUMNS: tl.constexpr = tl.constexpr(SEQUENCE_COLUMNS)
_CHUNK_COLUMNS: tl.constexpr = tl.constexpr(CHUNK_COLUMNS)


@dataclass(frozen=True)
class StepSequences:
    """The sequences of a step, int32 tables on the device. A padded chunk is an entry with the rows of all its blocks,
    which is the first block's; entries of the other blocks have no rows.

    few         [sequences, 4] those with few rows: slot, first row, number of rows, whether it begins
    many        [sequences, 4] the others
    every       [sequences, 4] both
    chunks      [chunks, 8] pieces of `chunk_rows` rows or fewer of the others: slot, whether the sequence begins, its
                first row, its number of rows in the step, the piece's first row, its number of rows, its number of rows
                with padding
    """

    few: Tensor
    many: Tensor
    every: Tensor
    chunks: Tensor
    chunk_rows: int
    is_padded: bool

    def new_results(self, x: Tensor, width: int) -> Tensor:
        """Return room for results [tokens, width], of x's type: 0 where rows may be padding."""
        allocate = torch.zeros if self.is_padded and len(self.many) else torch.empty
        return allocate((x.shape[0], width), dtype=x.dtype, device=x.device)

    def has_chunks(self, x: Tensor) -> bool:
        """Return whether sequences with many rows go through chunks: in bfloat16, whose range holds any state."""
        return len(self.many) > 0 and x.dtype is torch.bfloat16 and not STEP.is_batch_invariant


def find_sequences(starts: Any, lengths: Any, states: Any, x: Tensor) -> StepSequences:
    """Return the sequences of a step whose rows are those of x, computed once for all layers."""

    def find() -> StepSequences:
        if isinstance(starts, Tensor):
            return _padded(starts, lengths, states, x.shape[0])
        return _exact(starts, lengths, states, x.device)

    return STEP.share("sequences", (starts, lengths, states), (), find)


def _exact(starts: Any, lengths: Any, states: Any, device: torch.device) -> StepSequences:
    counts = np.diff(starts)
    table = np.stack([states, starts[:-1], counts, lengths == counts], axis=1).astype(np.int32)
    is_few = counts < FEW_ROWS
    few, many = table[is_few], table[~is_few]
    pieces = [
        (slot, begins, first, rows, first + start, min(CHUNK, rows - start), min(CHUNK, rows - start), 0)
        for slot, first, rows, begins in many.tolist()
        for start in range(0, rows, CHUNK)
    ]
    flat = np.concatenate([few.reshape(-1), many.reshape(-1), np.array(pieces, np.int32).reshape(-1)])
    uploaded = torch.from_numpy(flat).to(device)
    size = len(table) * SEQUENCE_COLUMNS
    every = uploaded[:size].view(-1, SEQUENCE_COLUMNS)
    chunks = uploaded[size:].view(-1, CHUNK_COLUMNS)
    return StepSequences(every[: len(few)], every[len(few) :], every, chunks, CHUNK, False)


def _padded(starts: Tensor, lengths: Tensor, states: Tensor, num_tokens: int) -> StepSequences:
    block, total = STEP.row_block, len(lengths)
    blocks = (num_tokens - total) // (block - 1) if block > 1 else 0
    decodes, chunk_rows = total - blocks, gcd(block, CHUNK)
    every = torch.empty((total, SEQUENCE_COLUMNS), dtype=torch.int32, device=starts.device)
    chunks = torch.empty((blocks * (block // chunk_rows), CHUNK_COLUMNS), dtype=torch.int32, device=starts.device)
    launch(
        describe_kernel,
        (total,),
        *(starts, lengths, states, every, chunks, total, decodes, block, chunk_rows),
        BLOCK=max(triton.next_power_of_2(total), MIN_DESCRIBED),
        num_warps=4,
    )
    return StepSequences(every[:decodes], every[decodes:], every, chunks, chunk_rows, True)


@triton.jit(do_not_specialize=["total", "decodes"])  # they change from step to step
def describe_kernel(
    starts, lengths, states, every, chunks, total, decodes, row_block, chunk_rows,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the table entries of one sequence of a padded step."""
    sequence = tl.program_id(0)
    slot = tl.load(states + sequence)
    rows = tl.load(starts + sequence + 1) - tl.load(starts + sequence)
    begins = tl.load(lengths + sequence) == rows
    first = tl.where(sequence < decodes, sequence, decodes + (sequence - decodes) * row_block)
    # Blocks of a chunk have its slot, and only the first one of them may begin.
    other = tl.arange(0, BLOCK)
    inside = (other < total) & (other >= decodes)
    others_slot = tl.load(states + other, mask=inside, other=-1)
    others_rows = tl.load(starts + other + 1, mask=inside, other=0) - tl.load(starts + other, mask=inside, other=0)
    continues = inside & (others_slot == slot) & (tl.load(lengths + other, mask=inside, other=0) != others_rows)
    is_block = sequence >= decodes
    behind = tl.sum(tl.where(continues & (other > sequence), others_rows, 0), 0)
    # Blocks before it of the same chunk.
    is_before = inside & (others_slot == slot) & (other < sequence) & (is_block & (begins == 0))
    chunk_first = tl.min(tl.where(is_before, other, sequence), 0)
    head_rows = tl.load(starts + chunk_first + 1) - tl.load(starts + chunk_first)
    head_begins = tl.load(lengths + chunk_first) == head_rows
    is_head = chunk_first == sequence
    entry = every + sequence * _SEQUENCE_COLUMNS
    tl.store(entry, slot)
    tl.store(entry + 1, first)
    tl.store(entry + 2, tl.where(is_block, tl.where(is_head, rows + behind, 0), rows))
    tl.store(entry + 3, begins.to(tl.int32))
    if is_block:
        before = (sequence - chunk_first) * row_block
        sequence_first = first - before
        chunk_behind = tl.sum(tl.where(continues & (other > chunk_first), others_rows, 0), 0)
        pieces = row_block // chunk_rows
        for piece in range(pieces):
            start = piece * chunk_rows
            entry = chunks + ((sequence - decodes) * pieces + piece) * _CHUNK_COLUMNS
            tl.store(entry, slot)
            tl.store(entry + 1, head_begins.to(tl.int32))
            tl.store(entry + 2, sequence_first)
            tl.store(entry + 3, head_rows + chunk_behind)
            tl.store(entry + 4, first + start)
            tl.store(entry + 5, tl.minimum(tl.maximum(rows - start, 0), chunk_rows))
            tl.store(entry + 6, chunk_rows)


def state_tile(rows: int, columns: int) -> dict[str, int]:
    """Return the tile of a state of a head in one program: all rows, and a slice of the columns.

    It depends on the state's shape alone, so that sums over rows have one order.
    """
    height = triton.next_power_of_2(rows)
    width = min(triton.next_power_of_2(columns), MAX_SLICE)
    return {"K": height, "V": width, "num_warps": min(max(height * width // (32 * VALUES_PER_THREAD), 1), 8)}


def state_grid(tile: dict[str, int], columns: int, heads: int, table: Tensor) -> tuple[int, int, int]:
    """Return the grid of programs for slices of columns, heads and sequences."""
    return triton.cdiv(columns, tile["V"]), heads, len(table)


@triton.jit
def read_sequence(table, sequence):
    """Return the slot, the first row, the number of rows of a sequence, and whether it begins."""
    entry = table + sequence * _SEQUENCE_COLUMNS
    slot, first = tl.load(entry).to(tl.int64), tl.load(entry + 1).to(tl.int64)
    return slot, first, tl.load(entry + 2), tl.load(entry + 3) != 0


@triton.jit
def read_piece(chunks, piece):
    """Return a piece of a sequence's rows: slot, whether the sequence begins, its first row and number of rows, the
    piece's first row, number of rows, and number of rows with padding."""
    entry = chunks + piece * _CHUNK_COLUMNS
    slot, first = tl.load(entry).to(tl.int64), tl.load(entry + 4).to(tl.int64)
    begins, sequence_first = tl.load(entry + 1) != 0, tl.load(entry + 2).to(tl.int64)
    return slot, begins, sequence_first, tl.load(entry + 3), first, tl.load(entry + 5), tl.load(entry + 6)


@triton.jit
def softplus(x):
    """Return log(1 + exp(x))."""
    return tl.maximum(x, 0.0) + log1p_of_share(tl.exp(-tl.abs(x)))
