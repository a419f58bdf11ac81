"""Mirostat (Basu et al., ICLR 2021): a controller that keeps the mean surprise of the output near a target."""

from math import log, log2

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.sampling.sampler_params import Sampling

TINY = 1e-300  # whose logarithm is finite
ESTIMATED_FROM = 100  # likeliest tokens from which version 1 estimates how the distribution falls


class Mirostat:
    """The controller of one request. `mu` is the maximum surprise of the next token in bits."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.mu = 2 * sampling.mirostat_tau

    def sample(self, logits: NDArray[np.float32], uniform: float) -> int:
        """Return the token at `uniform` of the allowed ones; the greatest logit of [vocab] is finite. Changes `mu`."""
        scores = logits.astype(np.float64)
        with np.errstate(over="ignore"):
            weights = np.exp((scores - scores.max()) / self.sampling.temperature)
        order = np.argsort(-weights, kind="stable")
        sorted_ = weights[order]
        shares = sorted_ / np.cumsum(sorted_)[-1]
        if self.sampling.mirostat == 1:
            num_kept = self._num_kept_by_version_1(shares)
        else:
            num_kept = int((-np.log2(np.maximum(shares, TINY)) <= self.mu).sum())
        sums = np.cumsum(shares[: max(1, num_kept)])
        index = min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), len(sums) - 1)
        surprise = -log2(shares[index] / sums[-1])
        self.mu -= self.sampling.mirostat_eta * (surprise - self.sampling.mirostat_tau)
        return int(order[index])

    def _num_kept_by_version_1(self, shares: NDArray[np.float64]) -> int:
        """Return how many tokens version 1 keeps. It assumes a distribution that falls as a power of the rank
        (equations 6 and 7)."""
        count = min(len(shares), ESTIMATED_FROM)
        if count < 2 or shares[1] == 0:
            return 1
        num_positive = int((shares[:count] > 0).sum())
        ranks = np.log(np.arange(2, num_positive + 1) / np.arange(1, num_positive))
        falls = np.log(shares[: num_positive - 1] / shares[1:num_positive])
        exponent = float((ranks * falls).sum() / (ranks * ranks).sum())
        excess, size = exponent - 1, len(shares)
        if exponent <= 0 or excess == 0:
            return size
        logarithm = (log(abs(excess)) + self.mu * log(2) - log(abs(1 - size**-excess))) / exponent
        return int(min(float(size), np.exp(min(logarithm, 50.0))))
