"""The filters (typical-p, top-p, min-p, XTC) of rows of candidates, and the draw; all rows at once.

Rows hold candidates in falling order of logits, in float64. Every sum over a row runs from its first candidate on, so
that a row's result does not depend on how long other rows make the array.
"""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.sampling.sampler_params import Sampling

Reals = NDArray[np.float64]
Mask = NDArray[np.bool_]
TINY = 1e-300  # whose logarithm is finite


class Candidates(NamedTuple):
    """Candidates of several requests.

    ids     [rows, k]
    scores  [rows, k]: logit minus the row's greatest; -inf past a row's end
    totals  [rows]: the sum of exp(score) over the distribution
    """

    ids: NDArray[np.intp]
    scores: Reals
    totals: Reals

    def only(self, rows: Mask) -> "Candidates":
        """Return these rows: bool [rows]."""
        return Candidates(self.ids[rows], self.scores[rows], self.totals[rows])


def apply_filters(rows: Candidates, samplings: Sequence[Sampling], coins: Sequence[float]) -> Mask:
    """Return which candidates typical-p, top-p, min-p and XTC keep: bool [rows, k]. `coins` in [0, 1) are for XTC."""
    weights = np.exp(rows.scores)
    mask = weights > 0
    mask[:, 0] = True
    totals = rows.totals
    typical = option_column(samplings, "typical_p")
    if (typical < 1).any():
        mask = _typical(rows.scores, weights, totals, typical)
        totals = np.where(typical[:, 0] < 1, last(np.cumsum(weights * mask, axis=1)), totals)
    top_p = option_column(samplings, "top_p")
    if (top_p < 1).any():
        sums = np.cumsum(weights * mask, axis=1)
        before = np.concatenate([np.zeros((len(sums), 1)), sums[:, :-1]], axis=1)
        reached = (before < top_p * totals[:, None]) | (top_p == 1)
        mask &= reached | (before == 0)
    min_p = option_column(samplings, "min_p")
    if (min_p > 0).any():
        best = np.where(mask, rows.scores, -np.inf).max(axis=1, keepdims=True)
        mask &= (rows.scores >= best + np.log(np.maximum(min_p, TINY))) | (min_p == 0)
    if any(sampling.xtc_probability for sampling in samplings):
        _exclude(mask, weights, samplings, coins)
    return mask


def sample(rows: Candidates, mask: Mask, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> NDArray[np.intp]:
    """Return the index, in each row, of the candidate at `uniforms` of the kept ones, after the temperature: [rows]."""
    best = np.where(mask, rows.scores, -np.inf).max(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):  # a tiny temperature: all but the greatest weigh nothing
        scaled = np.where(mask, (rows.scores - best) / option_column(samplings, "temperature"), -np.inf)
    sums = np.cumsum(np.exp(scaled), axis=1)
    targets = np.asarray(uniforms)[:, None] * last(sums)[:, None]
    indices = (sums <= targets).sum(axis=1)
    # Not past the end, should rounding make the product reach the total.
    ends = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    return np.minimum(indices, ends)


def _typical(scores: Reals, weights: Reals, totals: Reals, typical: Reals) -> Mask:
    """Return the candidates whose surprise is nearest to the expected one, until they reach typical_p."""
    logs = np.maximum(scores, log(TINY)) - np.log(totals)[:, None]
    shares = weights / totals[:, None]
    expected = last(np.cumsum(-shares * logs, axis=1))[:, None]
    order = np.argsort(np.where(weights > 0, np.abs(-logs - expected), np.inf), axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(shares, order, axis=1), axis=1)
    before = np.concatenate([np.zeros((len(sums), 1)), sums[:, :-1]], axis=1)
    mask = np.zeros(weights.shape, np.bool_)
    np.put_along_axis(mask, order, (before < typical) | (typical == 1), axis=1)
    return mask & (weights > 0)


def _exclude(mask: Mask, weights: Reals, samplings: Sequence[Sampling], coins: Sequence[float]) -> None:
    """Drop all candidates that reach the XTC threshold but the last one. Changes `mask`."""
    for row, (sampling, coin) in enumerate(zip(samplings, coins, strict=True)):
        if coin < sampling.xtc_probability:
            remaining = np.where(mask[row], weights[row], 0)
            reached = np.flatnonzero(remaining / np.cumsum(remaining)[-1] >= sampling.xtc_threshold)
            mask[row, reached[:-1]] = False


def last(sums: Reals) -> Reals:
    """Return the last column."""
    result: Reals = sums[:, -1]
    return result


def option_column(samplings: Sequence[Sampling], name: str) -> Reals:
    """Return one option of each row, as a column [rows, 1]."""
    return np.array([[getattr(sampling, name)] for sampling in samplings], np.float64)
