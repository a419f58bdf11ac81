"""Mirostat (Basu et al., ICLR 2021): a controller that keeps the mean surprise of what is said near a target."""

from math import log, log2

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.sampling.params import Sampling

TINY = 1e-300  # whose logarithm is finite
ESTIMATED_FROM = 100  # likeliest tokens from which version 1 estimates how the distribution falls


class Mirostat:
    """The controller of one request. `mu` is the most bits by which a token may surprise now."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.mu = 2 * sampling.mirostat_tau

    def pick(self, logits: NDArray[np.float32], uniform: float) -> int:
        """The token at `uniform` of what may be said, of logits [vocab] whose greatest is finite. Moves `mu`."""
        scores = logits.astype(np.float64)
        with np.errstate(over="ignore"):
            weights = np.exp((scores - scores.max()) / self.sampling.temperature)
        order = np.argsort(-weights, kind="stable")
        sorted_ = weights[order]
        shares = sorted_ / np.cumsum(sorted_)[-1]
        if self.sampling.mirostat == 1:
            kept = self._first(shares)
        else:
            kept = int((-np.log2(np.maximum(shares, TINY)) <= self.mu).sum())
        sums = np.cumsum(shares[: max(1, kept)])
        at = min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), len(sums) - 1)
        surprise = -log2(shares[at] / sums[-1])
        self.mu -= self.sampling.mirostat_eta * (surprise - self.sampling.mirostat_tau)
        return int(order[at])

    def _first(self, shares: NDArray[np.float64]) -> int:
        """How many tokens version 1 keeps: the distribution is taken for one that falls as a power of the rank (its
        equations 6 and 7)."""
        count = min(len(shares), ESTIMATED_FROM)
        if count < 2 or shares[1] == 0:
            return 1
        found = int((shares[:count] > 0).sum())
        ranks = np.log(np.arange(2, found + 1) / np.arange(1, found))
        falls = np.log(shares[: found - 1] / shares[1:found])
        exponent = float((ranks * falls).sum() / (ranks * ranks).sum())
        excess, size = exponent - 1, len(shares)
        if exponent <= 0 or excess == 0:
            return size
        logarithm = (log(abs(excess)) + self.mu * log(2) - log(abs(1 - size**-excess))) / exponent
        return int(min(float(size), np.exp(min(logarithm, 50.0))))
