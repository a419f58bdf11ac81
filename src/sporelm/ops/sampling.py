"""Sampling on the device: edits and masks of logits, draws of tokens, log probabilities (ADR 0046).

The host's sampler is the standard: it computes in float64. A device computes in float32, and says of each draw whether
the host must come to the same token. Sums are exact: weights are whole numbers of units, added up as int64, so that no
order of summation changes them.
"""

from math import ceil, log, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import OpError
from sporelm.ops.argument_checks import check_argument, check_ints, check_range, check_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32, I32

Ints = NDArray[np.int64]

OPTIONS = ("temperature", "top_k", "top_p", "min_score", "uniform")  # columns of `draw_tokens`' options
BLOCK = 64  # neighbours that are added up first where a whole row is drawn from
ROUNDOFF = 2.0**-24  # the relative error of one float32 operation
# Roundings, see `draw_tokens`: of a score, and of one divided by a temperature; of weights and of the number that is
# looked up, in a draw and for top_p.
SCORE_ERROR, SCALED_SCORE_ERROR = 1.25, 3.5
DRAW_ERROR, TOP_P_ERROR = 11.0, 14.0
THRESHOLD_ERROR = 4.0  # roundings of a score and of the logarithm of min_p
SURELY_POSITIVE, SURELY_ZERO = -708.0, -746.0  # scores whose float64 weight is above zero, and zero
LOWEST_SCORE = -1000.0  # below all scores of positive weight


def fraction_bits(vocab: int) -> int:
    """Return b: the unit of weights is 2^-b, so that `vocab` weights of up to 1 add up to less than 2^62 units."""
    return 61 - ceil(log2(vocab))


def _edit_spec(logits: Any, places: Any, edits: Any) -> Spec:
    spec, at, values = check_rows("logits", logits), check_ints("places", places, 2), check_rows("edits", edits)
    require(at.shape[1] == 2, f"places {at} must have two columns: row and token")
    require(values.shape == (at.shape[0], 3), f"edits {values} must have a row of three numbers for each of {at}")
    return spec


def _check_places(logits: Any, places: Any, edits: Any) -> None:
    at = places.numpy()
    for column, extent in enumerate(logits.shape):
        check_range(f"column {column} of places", at[:, column], 0, extent)


@op(_edit_spec, indices=_check_places)
def edit_logits(logits, places, edits):  # logits [rows, vocab], places int32 [edits, 2], edits [edits, 3]
    """Return logits with some of them changed: those at (row, token) by (bias, penalty, subtrahend).

    In the host's order, each step rounded to float32: the bias is added; the sum is divided by the penalty if it is
    above 0, else multiplied; the subtrahend is subtracted, and where it is infinite the result is -inf. A place that
    occurs twice must have the same edit twice, as padding has.
    """
    row, token = places[:, 0], places[:, 1]
    bias, penalty, subtrahend = edits.T
    biased = logits[row, token] + bias
    with np.errstate(invalid="ignore", over="ignore"):
        changed = np.where(biased > 0, biased / penalty, biased * penalty) - subtrahend
    result = logits.copy()
    result[row, token] = np.where(subtrahend == np.inf, -np.inf, changed)
    return result


def _mask_spec(logits: Any, rows: Any, words: Any) -> Spec:
    spec, wanted, mask = check_rows("logits", logits), check_ints("rows", rows), check_ints("words", words, 2)
    _check_words(mask, wanted, spec.shape[1])
    return Spec((wanted.shape[0], spec.shape[1]), F32)


def _check_words(words: Spec, rows: Spec, vocab: Any) -> None:
    """Raise OpError unless there is one bit for each token in a row of words for each row."""
    require(isinstance(vocab, int), f"the vocabulary is {vocab}, which changes from step to step; use a number")
    expected = (rows.shape[0], -(-vocab // 32))
    require(words.shape == expected, f"words {words} must be {list(expected)}: 32 tokens of {vocab} in each word")


def _check_mask_rows(logits: Any, rows: Any, words: Any) -> None:
    check_range("rows", rows.numpy(), 0, logits.shape[0])


@op(_mask_spec, indices=_check_mask_rows)
def mask_logits(logits, rows, words):  # logits [rows, vocab], rows int32 [masked], words int32 [masked, vocab / 32]
    """Return these rows of logits, with -inf for each token whose bit is 0: bit b of word w is token 32 * w + b."""
    bits = words[:, :, None] >> np.arange(32, dtype=np.int32) & 1
    allowed = bits.reshape(len(words), -1)[:, : logits.shape[1]] != 0
    return np.where(allowed, logits[rows], np.float32(-np.inf))


def _draw_spec(logits: Any, options: Any, *, k: int, whole: bool) -> Spec:
    rows, vocab = check_rows("logits", logits).shape
    columns = check_rows("options", options)
    require(isinstance(vocab, int) and 0 <= k <= vocab, f"k {k} must lie between 0 and the {vocab} logits of a row")
    require(columns.shape == (rows, len(OPTIONS)), f"options {columns} must have a row of {OPTIONS} for each of logits")
    return Spec((rows, 2), I32)


@op(_draw_spec)
def draw_tokens(logits, options, *, k, whole):  # logits [rows, vocab], options [rows, 5]
    """Draw a token for each row of logits: int32 [rows, 2], the token and whether it is certain.

    Columns of `options` are temperature (0: the greatest logit, the lowest id among equals), top_k (0: all), top_p,
    the logarithm of min_p (-inf: off), and a uniform number. A row whose greatest logit is not finite gives -1, unless
    its temperature is negative: that is the greatest logit in any case.

    k       candidates: the greatest logits of a row, from which rows with a filter are drawn; 0: there are no such rows
    whole   whether sums over whole rows are computed, for rows without a filter and for top_p without top_k

    A draw takes the token at `uniform` times the sum of the kept weights exp(score / temperature), where a score is a
    logit minus the row's greatest: in the order of ids without filters, else in falling order of logits. The filters
    keep a prefix of the candidates, as the host's do: of top_k, of top_p of the weights exp(score), of scores from
    log(min_p) on, and of weights above zero.

    A token is certain if no result within the following bounds differs, so that the host's float64 result for the same
    logits is the same. With u = 2^-24, the error of one float32 operation:

    - A score has one rounding. Divided by a temperature other than 1 it has three: with that of the temperature and
      that of the quotient. Where the host divides the same rounded score, it rounds the quotient to float32 too. So the
      scaled score s is off by a u |s|, with a = 1 or 3; second order terms make that 1.25 or 3.5.
    - An exponential has up to 4 units in the last place on the device, 8 u, and 3 on the host where that computes it in
      float32, 6 u.
    - A weight w = exp(s) is off by (a |s| + e) u w. The end of a token's share, the sum of the weights up to it
      divided by the sum W of all n, is off by (1 - x) of the errors up to it and x of those after it, if it is at x.
      For the scores that is at most a u E|s|, under p = w / W. Their entropy, log W + E|s|, is at most log n: it is at
      most a u log(n / W). For the exponentials it is 2 x (1 - x) e u <= e u / 2, 7 u at most. In the threshold of top_p
      the host adds up exponentials in float32 for W only: 4 u and 6 u.
    - The number that is looked up, uniform * W or top_p * W, has three roundings. With those of the exponentials, and 1
      for second order terms, that makes b = 11 for a draw, and 14 for top_p.
    - Each weight is rounded down to a whole number of units: n units at most.

    The margin is therefore u W (a log(n / W) + b), and n units. It is applied on both sides of the drawn token's
    share, and of the threshold of top_p. Where a filter may keep fewer or more candidates, the draw must be the same
    for the least and the greatest sum of kept weights. A score is compared with log(min_p) within four roundings. A
    candidate that equals the last one may have others beside it that are not among the candidates: it is uncertain.
    """
    vocab = logits.shape[1]
    temperature, top_k, top_p, min_score, uniform = options.T[:, :, None]
    best = logits.max(axis=1, keepdims=True)
    is_number = np.isfinite(best)
    with np.errstate(invalid="ignore"):
        scores = np.where(is_number, logits - best, np.float32(0))
    greedy = np.where(is_number | (temperature < 0), logits.argmax(axis=1)[:, None], -1)
    is_drawn = is_number & (temperature > 0)
    is_whole = (top_k == 0) & (top_p >= 1) & (min_score == -np.inf)
    tokens, is_certain = greedy, ~is_drawn
    totals = None
    if whole:
        totals, drawn, certain = _draw_from_rows(scores, np.where(is_drawn & is_whole, temperature, 1), uniform)
        tokens = np.where(is_drawn & is_whole, drawn, tokens)
        is_certain |= is_whole & certain
    if k:
        order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        found = np.take_along_axis(scores, order, axis=1)
        place, certain = _draw_from_candidates(found, vocab, totals, np.where(is_drawn, options.T[:, :, None], 1))
        drawn = np.where(place == 0, greedy, np.take_along_axis(order, place, axis=1))
        tokens = np.where(is_drawn & ~is_whole, drawn, tokens)
        is_certain |= ~is_whole & certain
    return np.concatenate([tokens, is_certain], axis=1).astype(np.int32)


def _weigh(scores: np.ndarray, vocab: int) -> Ints:
    """Return exp(scores) in units, rounded down."""
    with np.errstate(under="ignore"):
        return (np.exp(scores) * np.float32(2.0 ** fraction_bits(vocab))).astype(np.int64)


def _margin(totals: Ints, count: int, vocab: int, score_error: Any, weight_error: float) -> Ints:
    """Return the error bound of sums of `count` weights: see `draw_tokens`."""
    sums = totals.astype(np.float32)
    spread = np.maximum(np.float32(log(count) + fraction_bits(vocab) * log(2)) - np.log(sums), np.float32(0))
    share = np.float32(ROUNDOFF) * (score_error * spread + np.float32(weight_error))
    return (sums * share).astype(np.int64) + count


def _score_error(temperature: np.ndarray) -> np.ndarray:
    return np.where(temperature == 1, np.float32(SCORE_ERROR), np.float32(SCALED_SCORE_ERROR))


def _take_share(totals: Ints, share: np.ndarray) -> Ints:
    """Return a share in [0, 1] of sums."""
    return (totals.astype(np.float32) * share).astype(np.int64)


def _draw_from_rows(scores: np.ndarray, temperature: np.ndarray, uniform: np.ndarray) -> tuple[Any, Any, Any]:
    """Return the sums of whole rows, the tokens at `uniform` of them in the order of ids, and whether that is certain.

    All [rows, 1]. First a block of neighbours by its sum, then one of them.
    """
    rows, vocab = scores.shape
    blocks = -(-vocab // BLOCK)
    weights = np.zeros((rows, blocks * BLOCK), np.int64)
    with np.errstate(over="ignore"):
        weights[:, :vocab] = _weigh(scores / temperature, vocab)
    weights = weights.reshape(rows, blocks, BLOCK)
    sums = np.cumsum(weights.sum(axis=2), axis=1)
    totals = sums[:, -1:]
    error = _score_error(temperature)
    target, margin = _take_share(totals, uniform), _margin(totals, vocab, vocab, error, DRAW_ERROR)
    block = np.minimum((sums <= target).sum(axis=1, keepdims=True), blocks - 1)
    before = np.where(block > 0, np.take_along_axis(sums, np.maximum(block - 1, 0), axis=1), 0)
    inside = before + np.cumsum(np.take_along_axis(weights, block[:, :, None], axis=1)[:, 0], axis=1)
    place = np.minimum((inside <= target).sum(axis=1, keepdims=True), BLOCK - 1)
    low = np.where(place > 0, np.take_along_axis(inside, np.maximum(place - 1, 0), axis=1), before)
    high = np.take_along_axis(inside, place, axis=1)
    tokens = np.minimum(block * BLOCK + place, vocab - 1)
    return totals, tokens, ((low < target - margin) | (tokens == 0)) & (target + margin < high)


def _draw_from_candidates(
    scores: np.ndarray, vocab: int, row_totals: Ints | None, options: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the candidate drawn from scores [rows, k] in falling order, and whether that is certain.

    Both [rows, 1]. `row_totals` are the sums of whole rows, where they are known.
    """
    temperature, top_k, top_p, min_score, uniform = options
    k = scores.shape[1]
    rank, is_complete = np.arange(k), k == vocab
    num_visible = k if is_complete else (scores > scores[:, -1:]).sum(axis=1, keepdims=True)
    has_count = (top_k > 0) & (top_k <= k)
    in_top = (top_k == 0) | (rank < top_k)
    weights = _weigh(scores, vocab) * in_top
    sums = np.cumsum(weights, axis=1)
    totals = sums[:, -1:] if row_totals is None else np.where(top_k > 0, sums[:, -1:], row_totals)
    has_total = (top_p >= 1) | has_count | is_complete | ((top_k == 0) & (row_totals is not None))
    before, threshold = sums - weights, _take_share(totals, top_p)
    margin = np.where(
        top_k > 0, *(_margin(totals, count, vocab, np.float32(SCORE_ERROR), TOP_P_ERROR) for count in (k, vocab))
    )
    lowest = np.maximum(min_score, np.float32(LOWEST_SCORE))
    slack = np.float32(THRESHOLD_ERROR * ROUNDOFF) * -lowest
    surely = in_top & ((before < threshold - margin) | (top_p >= 1))
    surely &= (scores >= lowest + slack) & (scores > SURELY_POSITIVE)
    maybe = in_top & ((before < threshold + margin) | (top_p >= 1))
    maybe &= (scores >= lowest - slack) & (scores >= SURELY_ZERO)
    least, most = (np.maximum(kept.sum(axis=1, keepdims=True), 1) for kept in (surely, maybe))
    with np.errstate(over="ignore"):
        shares = np.cumsum(_weigh(scores / temperature, vocab), axis=1)
    least_sum, most_sum = (np.take_along_axis(shares, kept - 1, axis=1) for kept in (least, most))
    error = _score_error(temperature)
    target, margin = _take_share(most_sum, uniform), _margin(most_sum, k, vocab, error, DRAW_ERROR)
    place = np.minimum((shares <= target).sum(axis=1, keepdims=True), k - 1)
    low = np.take_along_axis(shares, np.maximum(place - 1, 0), axis=1)
    high = np.take_along_axis(shares, place, axis=1)
    is_inside = ((low < _take_share(least_sum, uniform) - margin) | (place == 0)) & (target + margin < high)
    is_known = has_total & (has_count | is_complete | (most < k))
    is_single = most == 1
    place = np.where(is_single, 0, place)
    return place, is_known & (is_single | (is_inside & ((place < num_visible) | (place == 0))))


def _choose_spec(first: Any, places: Any, words: Any, second: Any) -> Spec:
    draws, at = check_ints("first", first, 2), check_ints("places", places, 2)
    mask, others = check_ints("words", words, 2), check_ints("second", second, 2)
    require(draws.shape[1] == 2, f"first {draws} must have two columns: token, and whether it is certain")
    require(at.shape[1] == 2, f"places {at} must have two columns: row of the first draws, and whether they count")
    require(others.shape == (at.shape[0], 2), f"second {others} must have a token and its certainty for each of {at}")
    require(mask.shape[0] == at.shape[0], f"words {mask} must have a row for each of places {at}")
    return Spec((draws.shape[0], 3), I32)


def _check_choice(first: Any, places: Any, words: Any, second: Any) -> None:
    check_range("rows of places", places.numpy()[:, 0], -1, first.shape[0])


@op(_choose_spec, indices=_check_choice)
def choose_allowed(first, places, words, second):  # int32 [draws, 2], [masked, 2], [masked, words], [masked, 2]
    """Replace draws that a grammar does not allow: int32 [draws, 3], token, whether it is certain, whether replaced.

    `places` has for each second draw, from masked logits, the row of the first one (-1: of none), and whether the first
    one counts if its bit in `words` is 1. A second draw is certain only if a first one that counts is.
    """
    result = np.concatenate([first, np.zeros_like(first[:, :1])], axis=1)
    used = np.flatnonzero(places[:, 0] >= 0)
    row, counts = places[used, 0], places[used, 1] != 0
    token = first[row, 0]
    word = np.clip(token >> 5, 0, words.shape[1] - 1)
    is_allowed = (words[used, word] >> (token & 31) & 1 != 0) & (token >= 0)
    is_replaced = ~(counts & is_allowed)
    is_certain = (second[used, 1] != 0) & (((first[row, 1] != 0) & (token >= 0)) | ~counts)
    others = np.stack([second[used, 0], is_certain, np.ones_like(row)], axis=1)
    result[row] = np.where(is_replaced[:, None], others, result[row])
    return result.astype(np.int32)


def _place_spec(greedy: Any, draws: Any) -> Spec:
    spec, drawn = check_ints("greedy", greedy), check_ints("draws", draws, 2)
    require(drawn.shape[0] == spec.shape[0], f"draws {drawn} must have a row for each of greedy {spec}")
    return spec


@op(_place_spec)
def place_tokens(greedy, draws):  # greedy int32 [rows], draws int32 [rows, columns]
    """Return the token of each draw, its first column; -1 where the greatest logit is -1, because of NaN."""
    return np.where(greedy < 0, np.int32(-1), draws[:, 0])


def _take_spec(ids: Any, sources: Any, sampled: Any) -> Spec:
    spec, at = check_ints("ids", ids), check_ints("sources", sources)
    check_ints("sampled", sampled)
    require(at.shape == spec.shape, f"sources {at} must have one element for each of ids {spec}")
    return spec


def _check_sources(ids: Any, sources: Any, sampled: Any) -> None:
    check_range("sources", sources.numpy(), -1, sampled.shape[0])


@op(_take_spec, indices=_check_sources)
def take_sampled(ids, sources, sampled):  # ids and sources int32 [tokens], sampled int32 [rows]
    """Return the ids of a step, with those taken from the tokens of the step before that have a source there.

    The host does not know these yet. A source of -1 keeps the id. Where nothing could be sampled, -1, the result is 0:
    the host ends that request, and its row does not count.
    """
    return np.where(sources >= 0, np.maximum(sampled[np.maximum(sources, 0)], 0), ids)


def _logprobs_spec(logits: Any, tokens: Any, rows: Any, *, k: int) -> tuple[Spec, Spec]:
    spec, scored = check_rows("logits", logits), check_ints("rows", rows)
    check_argument("tokens", tokens, I32, 1)
    vocab = spec.shape[1]
    require(isinstance(vocab, int) and 1 <= k <= vocab, f"k {k} must lie between 1 and the {vocab} logits of a row")
    return Spec((scored.shape[0], 1 + k), F32), Spec((scored.shape[0], k), I32)


def _check_scored(logits: Any, tokens: Any, rows: Any, *, k: int) -> None:
    check_range("rows", rows.numpy(), 0, logits.shape[0])
    if tokens.shape != logits.shape[:1]:
        raise OpError(f"tokens {tokens.shape} must have one for each row of logits {logits.shape}")


@op(_logprobs_spec, indices=_check_scored)
def token_logprobs(logits, tokens, rows, *, k):  # logits [outputs, vocab], tokens int32 [outputs], rows int32 [scored]
    """Return log probabilities of some rows, [scored, 1 + k]: of the row's token, and of the k greatest logits; and
    their ids, [scored, k], in falling order, lower ids first among equals.

    NaN for a row whose greatest logit is not finite. A token of -1 counts as token 0.
    """
    scored, vocab = logits[rows], logits.shape[1]
    best = scored.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        scores = scored - best
        is_number = np.isfinite(best)
        sums = _weigh(np.where(is_number, scores, 0), vocab).sum(axis=1, keepdims=True).astype(np.float32)
        logs = np.where(is_number, scores - np.log(sums * np.float32(2.0 ** -fraction_bits(vocab))), np.nan)
    ids = np.argsort(-scored, axis=1, kind="stable")[:, :k]
    wanted = np.concatenate([np.maximum(tokens[rows], 0)[:, None], ids], axis=1)
    return np.take_along_axis(logs, wanted, axis=1).astype(np.float32), ids.astype(np.int32)
