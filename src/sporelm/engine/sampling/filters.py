"""What is left of rows of candidates, and which of it is drawn; all rows at once.

Rows hold candidates in falling order of logits, in float64. Every sum over a row runs from its first candidate on, so
that a row's result does not depend on how long other rows make the array.
"""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.sampling.params import Sampling

Reals = NDArray[np.float64]
Mask = NDArray[np.bool_]
TINY = 1e-300  # whose logarithm is finite


class Candidates(NamedTuple):
    """Candidates of several requests.

    ids     [rows, k]
    scores  [rows, k]: logit minus the row's greatest; -inf past a row's end
    totals  [rows]: the sum of exp(score) over all that the probabilities are of
    """

    ids: NDArray[np.intp]
    scores: Reals
    totals: Reals

    def only(self, rows: Mask) -> "Candidates":
        """These rows: bool [rows]."""
        return Candidates(self.ids[rows], self.scores[rows], self.totals[rows])


def apply_filters(rows: Candidates, samplings: Sequence[Sampling], coins: Sequence[float]) -> Mask:
    """Which candidates typical-p, top-p, min-p and XTC leave: bool [rows, k]. A coin in [0, 1) a row is for XTC."""
    weights = np.exp(rows.scores)
    kept = weights > 0
    kept[:, 0] = True
    totals = rows.totals
    typical = column(samplings, "typical_p")
    if (typical < 1).any():
        kept = _typical(rows.scores, weights, totals, typical)
        totals = np.where(typical[:, 0] < 1, last(np.cumsum(weights * kept, axis=1)), totals)
    top_p = column(samplings, "top_p")
    if (top_p < 1).any():
        sums = np.cumsum(weights * kept, axis=1)
        before = np.concatenate([np.zeros((len(sums), 1)), sums[:, :-1]], axis=1)
        reached = (before < top_p * totals[:, None]) | (top_p == 1)
        kept &= reached | (before == 0)
    min_p = column(samplings, "min_p")
    if (min_p > 0).any():
        best = np.where(kept, rows.scores, -np.inf).max(axis=1, keepdims=True)
        kept &= (rows.scores >= best + np.log(np.maximum(min_p, TINY))) | (min_p == 0)
    if any(sampling.xtc_probability for sampling in samplings):
        _exclude(kept, weights, samplings, coins)
    return kept


def sample(rows: Candidates, kept: Mask, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> NDArray[np.intp]:
    """The place, in each row, of the candidate at `uniforms` of what is kept, after the temperature: [rows]."""
    best = np.where(kept, rows.scores, -np.inf).max(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):  # a tiny temperature: all but the greatest weigh nothing
        tempered = np.where(kept, (rows.scores - best) / column(samplings, "temperature"), -np.inf)
    sums = np.cumsum(np.exp(tempered), axis=1)
    wanted = np.asarray(uniforms)[:, None] * last(sums)[:, None]
    places = (sums <= wanted).sum(axis=1)
    # Not past the end, should rounding make the product reach the total.
    ends = kept.shape[1] - 1 - kept[:, ::-1].argmax(axis=1)
    return np.minimum(places, ends)


def _typical(scores: Reals, weights: Reals, totals: Reals, typical: Reals) -> Mask:
    """The candidates whose surprise is nearest to the expected one, until they reach typical_p."""
    logs = np.maximum(scores, log(TINY)) - np.log(totals)[:, None]
    shares = weights / totals[:, None]
    expected = last(np.cumsum(-shares * logs, axis=1))[:, None]
    order = np.argsort(np.where(weights > 0, np.abs(-logs - expected), np.inf), axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(shares, order, axis=1), axis=1)
    before = np.concatenate([np.zeros((len(sums), 1)), sums[:, :-1]], axis=1)
    kept = np.zeros(weights.shape, np.bool_)
    np.put_along_axis(kept, order, (before < typical) | (typical == 1), axis=1)
    return kept & (weights > 0)


def _exclude(kept: Mask, weights: Reals, samplings: Sequence[Sampling], coins: Sequence[float]) -> None:
    """Drop, of the candidates that reach the threshold, all but the last. Changes `kept`."""
    for row, (sampling, coin) in enumerate(zip(samplings, coins, strict=True)):
        if coin < sampling.xtc_probability:
            there = np.where(kept[row], weights[row], 0)
            reached = np.flatnonzero(there / np.cumsum(there)[-1] >= sampling.xtc_threshold)
            kept[row, reached[:-1]] = False


def last(sums: Reals) -> Reals:
    """The last column."""
    result: Reals = sums[:, -1]
    return result


def column(samplings: Sequence[Sampling], name: str) -> Reals:
    """One value of each row, as a column [rows, 1]."""
    return np.array([[getattr(sampling, name)] for sampling in samplings], np.float64)
