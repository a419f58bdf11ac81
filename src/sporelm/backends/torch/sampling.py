"""Sampling through plain torch: see the references in `sporelm.ops.sampling` for bounds and meanings."""

from math import log

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.logit_selection import top_k as greatest
from sporelm.backends.torch.op_functions import implements
from sporelm.ops.sampling import (
    BLOCK,
    DRAW_ERROR,
    LOWEST_SCORE,
    ROUNDOFF,
    SCALED_SCORE_ERROR,
    SCORE_ERROR,
    SURELY_POSITIVE,
    SURELY_ZERO,
    THRESHOLD_ERROR,
    TOP_P_ERROR,
    fraction_bits,
)


@implements(ops.edit_logits)
def edit_logits(logits: Tensor, places: Tensor, edits: Tensor) -> Tensor:
    row, token = places[:, 0].long(), places[:, 1].long()
    bias, penalty, subtrahend = edits.unbind(1)
    biased = logits[row, token] + bias
    changed = torch.where(biased > 0, biased / penalty, biased * penalty) - subtrahend
    changed = changed.masked_fill(subtrahend.isposinf(), float("-inf"))
    return logits.index_put((row, token), changed)


@implements(ops.mask_logits)
def mask_logits(logits: Tensor, rows: Tensor, words: Tensor) -> Tensor:
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    allowed = ((words[:, :, None] >> shifts) & 1).reshape(len(words), -1)[:, : logits.shape[1]]
    return logits[rows.long()].masked_fill(allowed == 0, float("-inf"))


@implements(ops.take_sampled)
def take_sampled(ids: Tensor, sources: Tensor, sampled: Tensor) -> Tensor:
    return torch.where(sources >= 0, sampled[sources.clamp(min=0)].clamp(min=0), ids)


@implements(ops.draw_tokens)
def draw_tokens(logits: Tensor, options: Tensor, *, k: int, whole: bool) -> Tensor:
    vocab = logits.shape[1]
    temperature, top_k, top_p, min_score, uniform = options.t().unsqueeze(2)
    best = logits.amax(dim=1, keepdim=True)
    is_number = best.isfinite()
    scores = torch.where(is_number, logits - best, 0.0)
    greedy = logits.argmax(dim=1, keepdim=True).masked_fill(~is_number & (temperature >= 0), -1)
    is_drawn = is_number & (temperature > 0)
    is_whole = (top_k == 0) & (top_p >= 1) & min_score.isneginf()
    tokens, is_certain, totals = greedy, ~is_drawn, None
    if whole:
        scale = torch.where(is_drawn & is_whole, temperature, 1.0)
        totals, drawn, certain = _draw_from_rows(scores, scale, uniform)
        tokens = torch.where(is_drawn & is_whole, drawn, tokens)
        is_certain = is_certain | (is_whole & certain)
    if k:
        order = _order_candidates(logits, k)
        settled = torch.where(is_drawn.t().unsqueeze(2), options.t().unsqueeze(2), 1.0)
        place, certain = _draw_from_candidates(scores.gather(1, order), vocab, totals, settled)
        drawn = torch.where(place == 0, greedy, order.gather(1, place))
        tokens = torch.where(is_drawn & ~is_whole, drawn, tokens)
        is_certain = is_certain | (~is_whole & certain)
    return torch.cat([tokens, is_certain], dim=1).int()


def _order_candidates(logits: Tensor, k: int) -> Tensor:
    """Return the ids of the k greatest logits, in falling order, lower ids first among equals: [rows, k].

    Of several that equal the last one any may be among them: torch does not say which.
    """
    ids = logits.topk(k, dim=1, sorted=False).indices.sort(dim=1).values
    found = logits.gather(1, ids) + 0.0  # -0 equals 0
    return ids.gather(1, found.sort(dim=1, descending=True, stable=True).indices)


def _weigh(scores: Tensor, vocab: int) -> Tensor:
    return (scores.exp() * 2.0 ** fraction_bits(vocab)).long()


def _margin(totals: Tensor, count: int, vocab: int, score_error: Tensor | float, weight_error: float) -> Tensor:
    sums = totals.float()
    spread = (log(count) + fraction_bits(vocab) * log(2) - sums.log()).clamp(min=0.0)
    return (sums * (ROUNDOFF * (score_error * spread + weight_error))).long() + count


def _score_error(temperature: Tensor) -> Tensor:
    return torch.where(temperature == 1, SCORE_ERROR, SCALED_SCORE_ERROR)


def _take_share(totals: Tensor, share: Tensor) -> Tensor:
    return (totals.float() * share).long()


def _draw_from_rows(scores: Tensor, temperature: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocab = scores.shape
    blocks = -(-vocab // BLOCK)
    weights = torch.nn.functional.pad(_weigh(scores / temperature, vocab), (0, blocks * BLOCK - vocab))
    weights = weights.reshape(rows, blocks, BLOCK)
    sums = weights.sum(dim=2).cumsum(dim=1)
    totals = sums[:, -1:]
    target, margin = _take_share(totals, uniform), _margin(totals, vocab, vocab, _score_error(temperature), DRAW_ERROR)
    block = (sums <= target).sum(dim=1, keepdim=True).clamp(max=blocks - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0)
    chosen = weights.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]
    inside = before + chosen.cumsum(dim=1)
    place = (inside <= target).sum(dim=1, keepdim=True).clamp(max=BLOCK - 1)
    low = torch.where(place > 0, inside.gather(1, (place - 1).clamp(min=0)), before)
    high = inside.gather(1, place)
    tokens = (block * BLOCK + place).clamp(max=vocab - 1)
    return totals, tokens, ((low < target - margin) | (tokens == 0)) & (target + margin < high)


def _draw_from_candidates(
    scores: Tensor, vocab: int, row_totals: Tensor | None, options: Tensor
) -> tuple[Tensor, Tensor]:
    temperature, top_k, top_p, min_score, uniform = options.unbind(0)
    k = scores.shape[1]
    rank, is_complete = torch.arange(k, device=scores.device), k == vocab
    num_visible = (scores > scores[:, -1:]).sum(dim=1, keepdim=True)
    has_count = (top_k > 0) & (top_k <= k)
    in_top = (top_k == 0) | (rank < top_k)
    weights = _weigh(scores, vocab) * in_top
    sums = weights.cumsum(dim=1)
    totals = sums[:, -1:] if row_totals is None else torch.where(top_k > 0, sums[:, -1:], row_totals)
    has_total = (top_p >= 1) | has_count | is_complete | ((top_k == 0) & (row_totals is not None))
    before, threshold = sums - weights, _take_share(totals, top_p)
    of_top, of_row = (_margin(totals, count, vocab, SCORE_ERROR, TOP_P_ERROR) for count in (k, vocab))
    margin = torch.where(top_k > 0, of_top, of_row)
    lowest = min_score.clamp(min=LOWEST_SCORE)
    slack = (THRESHOLD_ERROR * ROUNDOFF) * -lowest
    surely = in_top & ((before < threshold - margin) | (top_p >= 1))
    surely = surely & (scores >= lowest + slack) & (scores > SURELY_POSITIVE)
    maybe = in_top & ((before < threshold + margin) | (top_p >= 1))
    maybe = maybe & (scores >= lowest - slack) & (scores >= SURELY_ZERO)
    least, most = (kept.sum(dim=1, keepdim=True).clamp(min=1) for kept in (surely, maybe))
    shares = _weigh(scores / temperature, vocab).cumsum(dim=1)
    least_sum, most_sum = (shares.gather(1, kept - 1) for kept in (least, most))
    target, margin = _take_share(most_sum, uniform), _margin(most_sum, k, vocab, _score_error(temperature), DRAW_ERROR)
    place = (shares <= target).sum(dim=1, keepdim=True).clamp(max=k - 1)
    low = shares.gather(1, (place - 1).clamp(min=0))
    high = shares.gather(1, place)
    is_inside = ((low < _take_share(least_sum, uniform) - margin) | (place == 0)) & (target + margin < high)
    is_known = has_total & (has_count | is_complete | (most < k))
    is_single = most == 1
    place = place.masked_fill(is_single, 0)
    is_visible = (place < num_visible) | (place == 0) | is_complete
    return place, is_known & (is_single | (is_inside & is_visible))


@implements(ops.choose_allowed)
def choose_allowed(first: Tensor, places: Tensor, words: Tensor, second: Tensor) -> Tensor:
    """Write the draws of padding to a row behind the last one."""
    row, counts = places[:, 0].long(), places[:, 1] != 0
    token, is_first_certain = first[row.clamp(min=0)].unbind(1)
    word = words.gather(1, (token >> 5).clamp(0, words.shape[1] - 1).long()[:, None])[:, 0]
    is_kept = counts & ((word >> (token & 31) & 1) != 0) & (token >= 0)
    is_second_certain = (second[:, 1] != 0) & (((is_first_certain != 0) & (token >= 0)) | ~counts)
    others = torch.stack([second[:, 0], is_second_certain.int(), torch.ones_like(token)], dim=1)
    kept = torch.stack([token, is_first_certain, torch.zeros_like(token)], dim=1)
    chosen = torch.where(is_kept[:, None], kept, others)
    result = torch.nn.functional.pad(first, (0, 1, 0, 1))
    result[torch.where(row < 0, len(first), row)] = chosen
    return result[:-1]


@implements(ops.place_tokens)
def place_tokens(greedy: Tensor, draws: Tensor) -> Tensor:
    return torch.where(greedy < 0, -1, draws[:, 0]).int()


@implements(ops.token_logprobs)
def token_logprobs(logits: Tensor, tokens: Tensor, rows: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    at, vocab = rows.long(), logits.shape[1]
    scored = logits[at]
    best = scored.amax(dim=1, keepdim=True)
    scores = torch.where(best.isfinite(), scored - best, float("nan"))
    sums = _weigh(torch.where(best.isfinite(), scores, 0.0), vocab).sum(dim=1, keepdim=True).float()
    logs = scores - (sums * 2.0 ** -fraction_bits(vocab)).log()
    ids = greatest(scored, k=k)[1]
    wanted = torch.cat([tokens[at].clamp(min=0)[:, None], ids], dim=1)
    return logs.gather(1, wanted.long()), ids
