"""The greatest logits of rows: argmax, and the k greatest in order.

A row is read by many programs, CHUNK logits each. Logits are compared by keys: integers in the same order. A logit and
its token id, the lower ids first among equals, are one int64, so that results depend on no order of reduction.

The k greatest are found without sorting rows (radix select). Each pass over the rows counts the keys by the next digit,
and so finds DIGIT_BITS of the k-th greatest key. Then the logits from that key on are gathered, and only these sorted.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide
from sporelm.backends.cuda.op_kernels import launches

CHUNK = 4096  # numbers of a row that a program reads; counts of a chunk have 16 bits
CHUNK_WARPS = 4
SELECT_WARPS = 8  # of programs that count or gather keys, which need more registers
KEY_BITS = 32
DIGIT_BITS = 4
NUM_PASSES = KEY_BITS // DIGIT_BITS
NUM_BINS = 1 << DIGIT_BITS
SORT_VALUES_PER_WARP = 256
MAX_SORT_WARPS = 16
SORT_REGISTERS = 96  # of a thread: left to itself, the assembler uses 64 and the stack

# In kernels 0x7FFFFFFF is the greatest key, and the greatest token; -0x80000000 the lowest key, the sign of an int32;
# -0x8000000000000000 the lowest entry.


@triton.jit
def order_key(values, NAN_KEY: tl.constexpr):
    """Return int32 in the order of float32 numbers, equal for both zeros."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return tl.where(values != values, NAN_KEY, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def pack_entry(key, token):
    """Return int64 in the order of keys, of equal ones the lowest token last."""
    return (key.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def entry_token(entry):
    """Return the token of an entry."""
    return 0x7FFFFFFF - (entry & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def entry_value(entry):
    """Return the logit of an entry; NaN for the key of NaN."""
    key = (entry >> 32).to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def greatest_entry_kernel(
    logits, row_map, out, stride, vocab, chunks, HAS_MAP: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Write the greatest entry of a chunk of a row. NaN is greater than all numbers."""
    row, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    source = tl.load(row_map + row) if HAS_MAP else row
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab
    values = load_wide(logits + source.to(tl.int64) * stride + token, inside)
    entries = tl.where(inside, pack_entry(order_key(values, 0x7FFFFFFF), token), -0x8000000000000000)
    tl.store(out + row * chunks + chunk, tl.max(entries, 0))


@triton.jit
def load_greatest(entries, row, chunks, CHUNKS: tl.constexpr):
    """Return the greatest entry of a row."""
    chunk = tl.arange(0, CHUNKS)
    return tl.max(tl.load(entries + row * chunks + chunk, mask=chunk < chunks, other=-0x8000000000000000), 0)


@triton.jit
def argmax_kernel(entries, out, chunks, CHUNKS: tl.constexpr):
    """Write the token of a row's greatest entry; -1 where that is NaN."""
    row = tl.program_id(0)
    entry = load_greatest(entries, row, chunks, CHUNKS)
    value = entry_value(entry)
    tl.store(out + row, tl.where(value != value, -1, entry_token(entry)))


@triton.jit
def _decide_digit(counts, states, row, chunks, rows, number, BINS: tl.constexpr, CHUNKS: tl.constexpr):
    """Return the digit of pass `number` of the k-th greatest key, the digits before it, and how many keys that begin
    with all of these are still to be taken."""
    chunk, digit = tl.arange(0, CHUNKS)[:, None], tl.arange(0, BINS)
    state = number * rows + row
    place = (state * chunks + chunk) * BINS + digit[None, :]
    of_digit = tl.sum(tl.load(counts + place, mask=chunk < chunks, other=0), 0)
    above = tl.sum(tl.where(digit[:, None] > digit[None, :], of_digit[:, None], 0), 0)
    prefix, wanted = tl.load(states + state * 2), tl.load(states + state * 2 + 1)
    found = tl.sum((above >= wanted).to(tl.int32), 0)  # of that many digits all keys are too small
    return found, prefix, wanted - tl.sum(tl.where(digit == found, above, 0), 0)


@triton.jit(do_not_specialize=["number"])  # one binary for all passes between the first and the last
def count_digits_kernel(
    logits, row_map, counts, greater, states, stride, vocab, chunks, rows, k, number,
    IS_FIRST: tl.constexpr, IS_LAST: tl.constexpr, BITS: tl.constexpr, HAS_MAP: tl.constexpr, CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Count the keys of a chunk by the digit of pass `number`, of the keys that begin as the k-th greatest one does.

    The first program of a row writes the state of this pass: the digits before, and how many keys are to be taken. The
    last pass writes also how many keys of the chunk are greater than all that begin so.
    """
    BINS: tl.constexpr = 1 << BITS
    row, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    source = tl.load(row_map + row) if HAS_MAP else row
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab
    values = load_wide(logits + source.to(tl.int64) * stride + token, inside)
    keys = (order_key(values, -0x80000000) ^ (-0x80000000)).to(tl.uint32, bitcast=True)
    state = number * rows + row
    shift = 32 - BITS * (number + 1)
    digits = ((keys >> shift) & (BINS - 1)).to(tl.int32)
    if IS_FIRST:
        if chunk == 0:
            tl.store(states + state * 2, 0)
            tl.store(states + state * 2 + 1, k)
    else:
        digit, prefix, wanted = _decide_digit(counts, states, row, chunks, rows, number - 1, BINS, CHUNKS)
        prefix = (prefix << BITS) | digit
        if chunk == 0:
            tl.store(states + state * 2, prefix)
            tl.store(states + state * 2 + 1, wanted)
        before = keys >> (shift + BITS)
        begin = prefix.to(tl.uint32, bitcast=True)
        if IS_LAST:
            tl.store(greater + row * chunks + chunk, tl.sum((inside & (before > begin)).to(tl.int32), 0))
        inside = inside & (before == begin)
    one = inside.to(tl.int64) << ((digits & 3) * 16).to(tl.int64)
    bins = tl.arange(0, BINS)
    found = tl.zeros((BINS,), tl.int64)
    for word in tl.static_range(BINS // 4):  # four counts in each sum
        found = tl.where((bins >> 2) == word, tl.sum(tl.where((digits >> 2) == word, one, 0), 0), found)
    found = (found >> ((bins & 3) * 16).to(tl.int64)) & 0xFFFF
    tl.store(counts + (state * chunks + chunk) * BINS + bins, found.to(tl.int32))


@triton.jit
def gather_greatest_kernel(
    logits, row_map, counts, greater, states, out, stride, vocab, chunks, rows, k,
    PASSES: tl.constexpr, BITS: tl.constexpr, HAS_MAP: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the entries of a chunk that are among the k greatest of a row, behind those of the chunks before.

    Of entries equal to the k-th greatest the first ones count.
    """
    BINS: tl.constexpr = 1 << BITS
    row, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    digit, prefix, wanted = _decide_digit(counts, states, row, chunks, rows, PASSES - 1, BINS, CHUNKS)
    bound = ((prefix << BITS) | digit) ^ (-0x80000000)
    each, bins = tl.arange(0, CHUNKS), tl.arange(0, BINS)[None, :]
    is_before = each < chunk
    place = (((PASSES - 1) * rows + row) * chunks + each[:, None]) * BINS + bins
    of_digit = tl.load(counts + place, mask=is_before[:, None], other=0)
    num_greater = tl.sum(tl.load(greater + row * chunks + each, mask=is_before, other=0), 0)
    num_greater += tl.sum(tl.sum(tl.where(bins > digit, of_digit, 0), 1), 0)
    num_equal = tl.sum(tl.sum(tl.where(bins == digit, of_digit, 0), 1), 0)
    source = tl.load(row_map + row) if HAS_MAP else row
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab
    keys = order_key(load_wide(logits + source.to(tl.int64) * stride + token, inside), -0x80000000)
    is_greater, is_equal = inside & (keys > bound), inside & (keys == bound)
    steps = is_greater.to(tl.int32) + (is_equal.to(tl.int32) << 16)
    until = tl.cumsum(steps, 0) - steps
    equal_before = num_equal + (until >> 16)
    place = num_greater + (until & 0xFFFF) + tl.minimum(equal_before, wanted)
    is_taken = is_greater | (is_equal & (equal_before < wanted))
    tl.store(out + row.to(tl.int64) * k + place, pack_entry(keys, token), mask=is_taken)


@triton.jit
def sort_entries_kernel(entries, out, k, BLOCK: tl.constexpr):
    """Write the entries of a row in falling order."""
    place = tl.arange(0, BLOCK)
    base = tl.program_id(0).to(tl.int64) * k
    found = tl.load(entries + base + place, mask=place < k, other=-0x8000000000000000)
    tl.store(out + base + place, tl.sort(found, descending=True), mask=place < k)


@triton.jit
def split_entries_kernel(entries, logits, values, tokens, stride, k, BLOCK: tl.constexpr):
    """Write the logits and the tokens of a row's entries."""
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < k
    token = entry_token(tl.load(entries + row * k + place, mask=inside, other=0))
    tl.store(values + row * k + place, load_wide(logits + row.to(tl.int64) * stride + token, inside), mask=inside)
    tl.store(tokens + row * k + place, token, mask=inside)


class LogitRows(NamedTuple):
    """Rows of logits, or those rows of them that `row_map` names, and how they are cut into chunks."""

    logits: Tensor  # [any, vocab], neighbouring columns
    row_map: Tensor | None  # int32 [rows]
    rows: int
    chunks: int  # of a row

    @property
    def arguments(self) -> tuple[Tensor, Tensor | None]:
        return self.logits, self.row_map

    @property
    def grid(self) -> tuple[int]:
        """The grid of kernels with a program for each chunk."""
        return (self.rows * self.chunks,)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The stride of rows, their numbers, and their chunks."""
        return self.logits.stride(0), self.logits.shape[1], self.chunks

    @property
    def max_chunks(self) -> int:
        """The power of two that programs read the results of all chunks in."""
        return int(triton.next_power_of_2(self.chunks))

    def find_greatest(self) -> Tensor:
        """Return the greatest entry of each chunk: int64 [rows, chunks]."""
        out = torch.empty(self.rows, self.chunks, dtype=torch.int64, device=self.logits.device)
        launch(
            greatest_entry_kernel,
            self.grid,
            *(*self.arguments, out, *self.sizes),
            HAS_MAP=self.row_map is not None,
            CHUNK=CHUNK,
            num_warps=CHUNK_WARPS,
        )
        return out

    def select_greatest(self, k: int) -> Tensor:
        """Return the k greatest entries of each row in falling order, NaN last: int64 [rows, k]."""
        device = self.logits.device
        counts = torch.empty(NUM_PASSES, self.rows, self.chunks, NUM_BINS, dtype=torch.int32, device=device)
        greater = torch.empty(self.rows, self.chunks, dtype=torch.int32, device=device)
        states = torch.empty(NUM_PASSES, self.rows, 2, dtype=torch.int32, device=device)
        entries, out = (torch.empty(self.rows, k, dtype=torch.int64, device=device) for _ in range(2))
        shared = {
            "BITS": DIGIT_BITS, "HAS_MAP": self.row_map is not None, "CHUNKS": self.max_chunks, "CHUNK": CHUNK,
        }  # fmt: skip
        for number in range(NUM_PASSES):
            launch(
                count_digits_kernel,
                self.grid,
                *(*self.arguments, counts, greater, states, *self.sizes, self.rows, k, number),
                IS_FIRST=number == 0,
                IS_LAST=number == NUM_PASSES - 1,
                num_warps=SELECT_WARPS,
                **shared,
            )
        launch(
            gather_greatest_kernel,
            self.grid,
            *(*self.arguments, counts, greater, states, entries, *self.sizes, self.rows, k),
            PASSES=NUM_PASSES,
            num_warps=SELECT_WARPS,
            **shared,
        )
        block = triton.next_power_of_2(k)
        warps = min(max(block // SORT_VALUES_PER_WARP, 1), MAX_SORT_WARPS)
        launch(
            sort_entries_kernel,
            (self.rows,),
            *(entries, out, k),
            BLOCK=block,
            num_warps=warps,
            maxnreg=SORT_REGISTERS,
        )
        return out


def view_logits(logits: Tensor, row_map: Tensor | None = None) -> LogitRows:
    """Return logits as kernels read them."""
    rows = logits if logits.stride(1) == 1 else logits.contiguous()
    count = logits.shape[0] if row_map is None else row_map.shape[0]
    return LogitRows(rows, row_map, count, triton.cdiv(logits.shape[1], CHUNK))


@launches(ops.argmax)
def argmax(logits: Tensor) -> Tensor:
    """Return the id of each row's greatest logit, the lowest among equals; -1 for a row with NaN."""
    rows = view_logits(logits)
    out = torch.empty(rows.rows, dtype=torch.int32, device=logits.device)
    entries = rows.find_greatest()
    launch(argmax_kernel, (rows.rows,), entries, out, rows.chunks, CHUNKS=rows.max_chunks, num_warps=1)
    return out


@launches(ops.top_k)
def top_k(logits: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """Return the k greatest logits of each row in falling order and their ids, lower ids first among equals."""
    rows = view_logits(logits)
    values = torch.empty(rows.rows, k, dtype=logits.dtype, device=logits.device)
    tokens = torch.empty(rows.rows, k, dtype=torch.int32, device=logits.device)
    launch(
        split_entries_kernel,
        (rows.rows,),
        *(rows.select_greatest(k), rows.logits, values, tokens, rows.logits.stride(0), k),
        BLOCK=triton.next_power_of_2(k),
        num_warps=1 if k <= SORT_VALUES_PER_WARP else 4,
    )
    return values, tokens
