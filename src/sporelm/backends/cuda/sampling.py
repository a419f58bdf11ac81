"""Sampling: edits and masks of logits, draws of tokens, log probabilities (ADR 0046).

Bounds and meanings are those of the references in `sporelm.ops.sampling`. Sums are whole numbers, so that they depend
on no order, and weights are the same wherever they are computed: `exp_times_power` leaves nothing to the compiler.

A condition on a whole row is turned into a number before it meets blocks: Triton's interpreter spreads conditions that
compare single real numbers as real numbers.
"""

from math import log as host_log

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.elementary_functions import exp_times_power, log
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.logit_selection import (
    CHUNK,
    CHUNK_WARPS,
    LogitRows,
    entry_token,
    entry_value,
    load_greatest,
    view_logits,
)
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.op_kernels import launches
from sporelm.ops.sampling import (
    BLOCK,
    DRAW_ERROR,
    LOWEST_SCORE,
    OPTIONS,
    ROUNDOFF,
    SCALED_SCORE_ERROR,
    SCORE_ERROR,
    SURELY_POSITIVE,
    SURELY_ZERO,
    THRESHOLD_ERROR,
    TOP_P_ERROR,
    fraction_bits,
)

NUM_OPTIONS = len(OPTIONS)
SMALL_BLOCK = 256  # edits, tokens or places of a program
MASK_BLOCK = 1024  # logits of a program that masks them
SUMS_PER_WARP = 512  # sums of blocks that a warp adds up
CANDIDATES_PER_WARP = 256


@triton.jit
def edit_logits_kernel(logits, places, edits, out, stride, vocab, count, BLOCK: tl.constexpr):
    """Write edited logits: (bias, penalty, subtrahend) at (row, token). Each step is rounded by itself."""
    edit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = edit < count
    row = tl.load(places + edit * 2, mask=inside, other=0).to(tl.int64)
    token = tl.load(places + edit * 2 + 1, mask=inside, other=0)
    bias = tl.load(edits + edit * 3, mask=inside, other=0.0)
    penalty = tl.load(edits + edit * 3 + 1, mask=inside, other=1.0)
    subtrahend = tl.load(edits + edit * 3 + 2, mask=inside, other=0.0)
    biased = load_wide(logits + row * stride + token, inside) + bias
    changed = tl.where(biased > 0.0, tl.div_rn(biased, penalty), biased * penalty) - subtrahend
    changed = tl.where(subtrahend == float("inf"), float("-inf"), changed)
    tl.store(out + row * vocab + token, changed, mask=inside)


@launches(ops.edit_logits)
def edit_logits(logits: Tensor, places: Tensor, edits: Tensor) -> Tensor:
    """Return logits with some of them changed, bit for bit as the host changes them."""
    given = view_logits(logits).logits
    out = given.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    count = len(places)
    launch(
        edit_logits_kernel,
        (triton.cdiv(count, SMALL_BLOCK),),
        *(given, places.contiguous(), edits.contiguous(), out, given.stride(0), given.shape[1], count),
        BLOCK=SMALL_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out


@triton.jit
def mask_logits_kernel(logits, rows, words, out, stride, vocab, num_words, blocks, BLOCK: tl.constexpr):
    """Write BLOCK logits of a row, -inf where the bit of the token is 0."""
    row = tl.program_id(0) // blocks
    token = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    word = tl.load(words + row * num_words + (token >> 5), mask=inside, other=0)
    is_allowed = ((word >> (token & 31)) & 1) != 0
    source = tl.load(rows + row).to(tl.int64)
    values = load_wide(logits + source * stride + token, inside)
    store_narrow(out + row.to(tl.int64) * vocab + token, tl.where(is_allowed, values, float("-inf")), inside)


@launches(ops.mask_logits)
def mask_logits(logits: Tensor, rows: Tensor, words: Tensor) -> Tensor:
    """Return these rows of logits with -inf for each token whose bit is 0."""
    given = view_logits(logits).logits
    vocab = given.shape[1]
    out = torch.empty(len(rows), vocab, dtype=logits.dtype, device=logits.device)
    blocks = triton.cdiv(vocab, MASK_BLOCK)
    launch(
        mask_logits_kernel,
        (len(rows) * blocks,),
        *(given, rows, words.contiguous(), out, given.stride(0), vocab, words.shape[1], blocks),
        BLOCK=MASK_BLOCK,
        num_warps=4,
    )
    return out


@triton.jit
def take_sampled_kernel(ids, sources, sampled, out, count, BLOCK: tl.constexpr):
    """Write ids, or the sampled tokens that they have as a source."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    source = tl.load(sources + place, mask=inside, other=-1)
    token = tl.load(sampled + source, mask=inside & (source >= 0), other=0)
    token = tl.where(source >= 0, tl.maximum(token, 0), tl.load(ids + place, mask=inside, other=0))
    tl.store(out + place, token, mask=inside)


@launches(ops.take_sampled)
def take_sampled(ids: Tensor, sources: Tensor, sampled: Tensor) -> Tensor:
    """Return the ids of a step, with those taken from the tokens of the step before that have a source there."""
    out = torch.empty_like(ids)
    grid = (triton.cdiv(len(ids), SMALL_BLOCK),)
    launch(take_sampled_kernel, grid, ids, sources, sampled, out, len(ids), BLOCK=SMALL_BLOCK, num_warps=4)
    return out


@triton.jit
def place_tokens_kernel(greedy, draws, out, stride, count, BLOCK: tl.constexpr):
    """Write the tokens of draws, -1 where the greatest logit is -1."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    token = tl.load(draws + row * stride, mask=inside, other=0)
    token = tl.where(tl.load(greedy + row, mask=inside, other=0) < 0, -1, token)
    tl.store(out + row, token, mask=inside)


@launches(ops.place_tokens)
def place_tokens(greedy: Tensor, draws: Tensor) -> Tensor:
    """Return the token of each draw; -1 where the greatest logit is -1, because of NaN."""
    out, count = torch.empty_like(greedy), len(greedy)
    grid = (triton.cdiv(count, SMALL_BLOCK),)
    launch(place_tokens_kernel, grid, greedy, draws, out, draws.stride(0), count, BLOCK=SMALL_BLOCK, num_warps=4)
    return out


@triton.jit
def choose_allowed_kernel(first, places, words, second, out, count, num_words, BLOCK: tl.constexpr):
    """Write (token, whether certain, whether replaced) of the first draws that have a second one."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(places + place * 2, mask=place < count, other=-1)
    inside = row >= 0
    counts = tl.load(places + place * 2 + 1, mask=inside, other=0) != 0
    token = tl.load(first + row * 2, mask=inside, other=-1)
    is_certain = tl.load(first + row * 2 + 1, mask=inside, other=0) != 0
    at = tl.minimum(tl.maximum(token >> 5, 0), num_words - 1)
    word = tl.load(words + place.to(tl.int64) * num_words + at, mask=inside, other=0)
    is_kept = counts & (((word >> (token & 31)) & 1) != 0) & (token >= 0)
    is_settled = (is_certain & (token >= 0)) | (counts == 0)
    is_second_certain = (tl.load(second + place * 2 + 1, mask=inside, other=0) != 0) & is_settled
    other = tl.load(second + place * 2, mask=inside, other=0)
    tl.store(out + row * 3, tl.where(is_kept, token, other), mask=inside)
    tl.store(out + row * 3 + 1, tl.where(is_kept, is_certain, is_second_certain).to(tl.int32), mask=inside)
    tl.store(out + row * 3 + 2, 1 - is_kept.to(tl.int32), mask=inside)


@launches(ops.choose_allowed)
def choose_allowed(first: Tensor, places: Tensor, words: Tensor, second: Tensor) -> Tensor:
    """Return draws with those replaced that a grammar does not allow."""
    out = torch.nn.functional.pad(first, (0, 1))
    launch(
        choose_allowed_kernel,
        (triton.cdiv(len(places), SMALL_BLOCK),),
        *(first.contiguous(), places.contiguous(), words.contiguous(), second.contiguous(), out),
        *(len(places), words.shape[1]),
        BLOCK=SMALL_BLOCK,
        num_warps=4,
    )
    return out


# ---- draws


@triton.jit
def weigh(scores, BITS: tl.constexpr):
    """Return exp(scores) in units of 2^-BITS, rounded down, for scores up to 0."""
    return exp_times_power(tl.maximum(scores, -64.0), BITS).to(tl.int64)  # below -64 all weights are 0


@triton.jit
def take_share(total, share):
    """Return a share in [0, 1] of a sum."""
    return (total.to(tl.float32) * share).to(tl.int64)


@triton.jit
def error_margin(total, count, spread, score_error, WEIGHT_ERROR: tl.constexpr, ROUNDOFF: tl.constexpr):
    """Return the error bound of a sum of `count` weights; `spread` is the logarithm of count * 2^bits."""
    sums = total.to(tl.float32)
    distance = tl.maximum(spread - log(sums), 0.0)
    return (sums * (ROUNDOFF * (score_error * distance + WEIGHT_ERROR))).to(tl.int64) + count


@triton.jit
def load_options(options, row, NUM_OPTIONS: tl.constexpr):
    """Return the options of a row, and whether it has no filters: it is drawn from as a whole."""
    base = options + row * NUM_OPTIONS
    top_k, top_p, min_score = tl.load(base + 1), tl.load(base + 2), tl.load(base + 3)
    is_whole = (top_k == 0.0) & (top_p >= 1.0) & (min_score == float("-inf"))
    return tl.load(base), top_k, top_p, min_score, tl.load(base + 4), is_whole


@triton.jit
def is_finite(value):
    """Return whether a number is neither infinite nor NaN."""
    return tl.abs(value) < float("inf")


@triton.jit
def sum_blocks_kernel(
    logits, row_map, entries, options, sums, stride, vocab, chunks, blocks,
    BITS: tl.constexpr, NUM_OPTIONS: tl.constexpr, HAS_OPTIONS: tl.constexpr, HAS_MAP: tl.constexpr,
    NEIGHBOURS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the sums of the weights of blocks of neighbours in a chunk of a row."""
    row, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    best = entry_value(load_greatest(entries, row, chunks, CHUNKS))
    num_scored = tl.where(is_finite(best), vocab, 0)
    best = tl.where(is_finite(best), best, 0.0)  # no infinity less infinity
    source = tl.load(row_map + row) if HAS_MAP else row
    block = tl.arange(0, CHUNK // NEIGHBOURS)
    token = chunk * CHUNK + block[:, None] * NEIGHBOURS + tl.arange(0, NEIGHBOURS)[None, :]
    inside = token < vocab
    values = load_wide(logits + source.to(tl.int64) * stride + token, inside)
    scores = tl.where(token < num_scored, values - best, 0.0)
    if HAS_OPTIONS:
        temperature, _, _, _, _, is_whole = load_options(options, row, NUM_OPTIONS)
        scores = tl.div_rn(scores, tl.where((temperature > 0.0) & is_whole, temperature, 1.0))
    weights = tl.where(inside, weigh(scores, BITS), 0)
    number = chunk * (CHUNK // NEIGHBOURS) + block
    tl.store(sums + row * blocks + number, tl.sum(weights, 1), mask=number < blocks)


def sum_blocks(rows: LogitRows, entries: Tensor, options: Tensor | None) -> Tensor:
    """Return the sums of the weights of each block of neighbours: int64 [rows, blocks]."""
    vocab = rows.logits.shape[1]
    blocks = triton.cdiv(vocab, BLOCK)
    sums = torch.empty(rows.rows, blocks, dtype=torch.int64, device=rows.logits.device)
    launch(
        sum_blocks_kernel,
        rows.grid,
        *(*rows.arguments, entries, options, sums, *rows.sizes, blocks),
        BITS=fraction_bits(vocab),
        NUM_OPTIONS=NUM_OPTIONS,
        HAS_OPTIONS=options is not None,
        HAS_MAP=rows.row_map is not None,
        NEIGHBOURS=BLOCK,
        CHUNKS=rows.max_chunks,
        CHUNK=CHUNK,
        num_warps=CHUNK_WARPS,
    )
    return sums


@triton.jit
def draw_from_row_kernel(
    logits, entries, options, sums, totals, out, stride, vocab, chunks, blocks, spread,
    BITS: tl.constexpr, NUM_OPTIONS: tl.constexpr, HAS_SUMS: tl.constexpr, NEIGHBOURS: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCKS: tl.constexpr, SCORE_ERROR: tl.constexpr, SCALED_SCORE_ERROR: tl.constexpr,
    DRAW_ERROR: tl.constexpr, ROUNDOFF: tl.constexpr,
):  # fmt: skip
    """Write (token, whether certain) of a row: its greatest logit, or a draw from the row as a whole.

    First the block that holds the number which is looked up is found by the sums of blocks, then the token in it.
    """
    row = tl.program_id(0)
    entry = load_greatest(entries, row, chunks, CHUNKS)
    best = entry_value(entry)
    is_number = is_finite(best)
    temperature, _, _, _, uniform, is_whole = load_options(options, row, NUM_OPTIONS)
    token = tl.where(is_number | (temperature < 0.0), entry_token(entry), -1)
    is_drawn = is_number & (temperature > 0.0)
    is_certain = is_drawn == 0
    if HAS_SUMS:
        is_whole = is_drawn & is_whole
        scale = tl.where(is_whole, temperature, 1.0)
        number = tl.arange(0, BLOCKS)
        of_block = tl.load(sums + row * blocks + number, mask=number < blocks, other=0)
        until = tl.cumsum(of_block, 0)
        total = tl.sum(of_block, 0)
        tl.store(totals + row, total)
        target = take_share(total, uniform)
        score_error = tl.where(scale == 1.0, SCORE_ERROR, SCALED_SCORE_ERROR)
        margin = error_margin(total, vocab, spread, score_error, DRAW_ERROR, ROUNDOFF)
        block = tl.minimum(tl.sum(((until <= target) & (number < blocks)).to(tl.int32), 0), blocks - 1)
        before = tl.sum(tl.where(number < block, of_block, 0), 0)
        neighbour = tl.arange(0, NEIGHBOURS)
        candidate = block * NEIGHBOURS + neighbour
        inside = candidate < vocab
        values = load_wide(logits + row.to(tl.int64) * stride + candidate, inside)
        best = tl.where(is_number, best, 0.0)  # no infinity less infinity
        scores = tl.where(candidate < tl.where(is_number, vocab, 0), values - best, 0.0)
        scores = tl.div_rn(scores, scale)
        weights = tl.where(inside, weigh(scores, BITS), 0)
        place = tl.sum((before + tl.cumsum(weights, 0) <= target).to(tl.int32), 0)
        place = tl.minimum(place, NEIGHBOURS - 1)
        low = before + tl.sum(tl.where(neighbour < place, weights, 0), 0)
        high = low + tl.sum(tl.where(neighbour == place, weights, 0), 0)
        drawn = tl.minimum(block * NEIGHBOURS + place, vocab - 1)
        is_proved = ((low < target - margin) | (drawn == 0)) & (target + margin < high)
        token = tl.where(is_whole, drawn, token)
        is_certain = is_certain | (is_whole & is_proved)
    tl.store(out + row * 2, token)
    tl.store(out + row * 2 + 1, is_certain.to(tl.int32))


@triton.jit
def draw_from_candidates_kernel(
    greatest, candidates, options, totals, out, vocab, chunks, k, spread, top_spread,
    BITS: tl.constexpr, NUM_OPTIONS: tl.constexpr, HAS_SUMS: tl.constexpr, IS_COMPLETE: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, SCORE_ERROR: tl.constexpr,
    SCALED_SCORE_ERROR: tl.constexpr, DRAW_ERROR: tl.constexpr, TOP_P_ERROR: tl.constexpr,
    THRESHOLD_ERROR: tl.constexpr, LOWEST_SCORE: tl.constexpr, SURELY_POSITIVE: tl.constexpr,
    SURELY_ZERO: tl.constexpr, ROUNDOFF: tl.constexpr,
):  # fmt: skip
    """Write (token, whether certain) of a row that is drawn from with filters, from its k greatest logits."""
    row = tl.program_id(0)
    best = entry_value(load_greatest(greatest, row, chunks, CHUNKS))
    temperature, top_k, top_p, min_score, uniform, is_whole = load_options(options, row, NUM_OPTIONS)
    is_drawn = is_finite(best) & (temperature > 0.0) & (is_whole == 0)
    temperature = tl.where(is_drawn, temperature, 1.0)
    best = tl.where(is_drawn, best, 0.0)  # no infinity less infinity
    rank = tl.arange(0, BLOCK)
    inside = rank < k
    entries = tl.load(candidates + row.to(tl.int64) * k + rank, mask=inside, other=0)
    scores = tl.where(rank < tl.where(is_drawn, k, 0), entry_value(entries) - best, 0.0)
    last = tl.min(scores, 0)
    num_visible = tl.sum((inside & (scores > last)).to(tl.int32), 0)
    has_count = (top_k > 0.0) & (top_k <= k)
    in_top = rank < tl.minimum(tl.where(top_k == 0.0, k, top_k.to(tl.int32)), k)
    weights = tl.where(in_top, weigh(scores, BITS), 0)
    total = tl.sum(weights, 0)
    before = tl.cumsum(weights, 0) - weights
    has_total = (top_p >= 1.0) | has_count | IS_COMPLETE
    if HAS_SUMS:
        total = tl.where(top_k > 0.0, total, tl.load(totals + row))
        has_total = has_total | (top_k == 0.0)
    threshold = tl.where(top_p >= 1.0, 1 << 62, take_share(total, top_p))  # without top_p beyond all sums
    margin = error_margin(
        total,
        tl.where(top_k > 0.0, k, vocab),
        tl.where(top_k > 0.0, top_spread, spread),
        SCORE_ERROR,
        TOP_P_ERROR,
        ROUNDOFF,
    )
    lowest = tl.maximum(min_score, LOWEST_SCORE)
    slack = (THRESHOLD_ERROR * ROUNDOFF) * -lowest
    margin = tl.where(top_p >= 1.0, 0, margin)
    surely = in_top & (before < threshold - margin) & (scores >= lowest + slack) & (scores > SURELY_POSITIVE)
    maybe = in_top & (before < threshold + margin) & (scores >= lowest - slack) & (scores >= SURELY_ZERO)
    least = tl.maximum(tl.sum(surely.to(tl.int32), 0), 1)
    most = tl.maximum(tl.sum(maybe.to(tl.int32), 0), 1)
    shares = tl.where(inside, weigh(tl.div_rn(scores, temperature), BITS), 0)
    least_sum = tl.sum(tl.where(rank < least, shares, 0), 0)
    most_sum = tl.sum(tl.where(rank < most, shares, 0), 0)
    target = take_share(most_sum, uniform)
    score_error = tl.where(temperature == 1.0, SCORE_ERROR, SCALED_SCORE_ERROR)
    margin = error_margin(most_sum, k, top_spread, score_error, DRAW_ERROR, ROUNDOFF)
    place = tl.minimum(tl.sum((inside & (tl.cumsum(shares, 0) <= target)).to(tl.int32), 0), k - 1)
    low = tl.sum(tl.where(rank < place, shares, 0), 0)
    high = low + tl.sum(tl.where(rank == place, shares, 0), 0)
    is_proved = ((low < take_share(least_sum, uniform) - margin) | (place == 0)) & (target + margin < high)
    is_known = has_total & (has_count | IS_COMPLETE | (most < k))
    is_single = most == 1
    place = tl.where(is_single, 0, place)
    is_visible = (place < num_visible) | (place == 0) | IS_COMPLETE
    token = entry_token(tl.sum(tl.where(rank == place, entries, 0), 0))
    is_certain = is_known & (is_single | (is_proved & is_visible))
    tl.store(out + row * 2, token, mask=is_drawn)
    tl.store(out + row * 2 + 1, is_certain.to(tl.int32), mask=is_drawn)


def log_of_sum(count: int, vocab: int) -> float:
    """Return the logarithm of the sum of `count` weights of 1, in units."""
    return host_log(count) + fraction_bits(vocab) * host_log(2)


@launches(ops.draw_tokens)
def draw_tokens(logits: Tensor, options: Tensor, *, k: int, whole: bool) -> Tensor:
    """Return a token for each row and whether it is certain: int32 [rows, 2].

    The first program of a row writes its greatest logit, or its draw without filters; rows with filters follow.
    """
    rows, options = view_logits(logits), options.contiguous()
    vocab = logits.shape[1]
    out = torch.empty(rows.rows, 2, dtype=torch.int32, device=logits.device)
    greatest = rows.find_greatest()
    sums = sum_blocks(rows, greatest, options) if whole else None
    totals = torch.empty(rows.rows, dtype=torch.int64, device=logits.device) if whole else None
    blocks = triton.cdiv(vocab, BLOCK)
    max_blocks = triton.next_power_of_2(blocks)
    shared = {
        "BITS": fraction_bits(vocab), "NUM_OPTIONS": NUM_OPTIONS, "HAS_SUMS": whole, "CHUNKS": rows.max_chunks,
        "SCORE_ERROR": SCORE_ERROR, "SCALED_SCORE_ERROR": SCALED_SCORE_ERROR, "DRAW_ERROR": DRAW_ERROR,
        "ROUNDOFF": ROUNDOFF,
    }  # fmt: skip
    launch(
        draw_from_row_kernel,
        (rows.rows,),
        *(rows.logits, greatest, options, sums, totals, out, *rows.sizes, blocks, log_of_sum(vocab, vocab)),
        NEIGHBOURS=BLOCK,
        BLOCKS=max_blocks,
        num_warps=min(max(max_blocks // SUMS_PER_WARP, 1), 8),
        **shared,
    )
    if k:
        block = triton.next_power_of_2(k)
        launch(
            draw_from_candidates_kernel,
            (rows.rows,),
            *(greatest, rows.select_greatest(k), options, totals, out, vocab, rows.chunks, k),
            *(log_of_sum(vocab, vocab), log_of_sum(k, vocab)),
            IS_COMPLETE=k == vocab,
            BLOCK=block,
            TOP_P_ERROR=TOP_P_ERROR,
            THRESHOLD_ERROR=THRESHOLD_ERROR,
            LOWEST_SCORE=LOWEST_SCORE,
            SURELY_POSITIVE=SURELY_POSITIVE,
            SURELY_ZERO=SURELY_ZERO,
            num_warps=min(max(block // CANDIDATES_PER_WARP, 1), 8),
            **shared,
        )
    return out


# ---- log probabilities


@triton.jit
def token_logprobs_kernel(
    logits, rows, tokens, greatest, sums, candidates, logprobs, ids, stride, chunks, blocks, k,
    BITS: tl.constexpr, CHUNKS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the log probabilities of a row's token and of its k greatest logits, and their ids."""
    row = tl.program_id(0)
    source = tl.load(rows + row)
    best = entry_value(load_greatest(greatest, row, chunks, CHUNKS))
    best = tl.where(is_finite(best), best, float("nan"))
    number = tl.arange(0, BLOCKS)
    total = tl.sum(tl.load(sums + row * blocks + number, mask=number < blocks, other=0), 0)
    norm = log(total.to(tl.float32) * (2.0**-BITS))
    rank = tl.arange(0, BLOCK)
    inside = rank < k
    token = entry_token(tl.load(candidates + row * k + rank, mask=inside, other=0))
    base = logits + source.to(tl.int64) * stride
    found = load_wide(base + token, inside) - best - norm
    tl.store(logprobs + row * (1 + k) + 1 + rank, found, mask=inside)
    tl.store(ids + row * k + rank, token, mask=inside)
    own = tl.load(base + tl.maximum(tl.load(tokens + source), 0)).to(tl.float32)
    tl.store(logprobs + row * (1 + k), own - best - norm)


@launches(ops.token_logprobs)
def token_logprobs(logits: Tensor, tokens: Tensor, rows: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """Return log probabilities of some rows: of the row's token, and of the k greatest logits; and their ids."""
    scored = view_logits(logits, rows)
    vocab, count = logits.shape[1], scored.rows
    logprobs = torch.empty(count, 1 + k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(count, k, dtype=torch.int32, device=logits.device)
    greatest = scored.find_greatest()
    sums = sum_blocks(scored, greatest, None)
    blocks, block = sums.shape[1], triton.next_power_of_2(k)
    max_blocks = triton.next_power_of_2(blocks)
    launch(
        token_logprobs_kernel,
        (count,),
        *(scored.logits, rows, tokens, greatest, sums, scored.select_greatest(k), logprobs, ids),
        *(scored.logits.stride(0), scored.chunks, blocks, k),
        BITS=fraction_bits(vocab),
        CHUNKS=scored.max_chunks,
        BLOCKS=max_blocks,
        BLOCK=block,
        num_warps=min(max(max_blocks // SUMS_PER_WARP, 1), 8),
    )
    return logprobs, ids
