"""Choosing the next token from a row of logits.

The order is fixed: repetition penalty, top-k, top-p, min-p, temperature, draw. So top-p and min-p look at the model's
own probabilities, among the k greatest. At temperature 0 the greatest logit is taken, the lowest id among equals. The
same seed gives the same tokens: a request draws one number a token from a generator of its own (PCG64, O'Neill 2014).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.candidates import greatest
from sporelm.engine.step import Step
from sporelm.errors import RequestError

MOST_SEED = (1 << 64) - 1
FIRST_CANDIDATES = 256  # looked at for top-p without top-k; four times as many until their probability suffices
NOT_A_TOKEN = -1  # what argmax gives for a row with NaN


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. Raises RequestError for a value out of its range.

    temperature         0 is greedy; otherwise logits are divided by it
    top_k               keep the k greatest logits; 0 keeps all
    top_p               of those, keep the fewest whose probability reaches top_p
    min_p               of those, keep what has at least min_p times the probability of the greatest
    repetition_penalty  logits of tokens seen in prompt and answer are divided by it, or multiplied if negative
                        (Keskar et al. 2019)
    seed                of the generator
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        within("temperature", self.temperature, 0.0, 100.0)
        whole("top_k", self.top_k, 0, (1 << 31) - 1)
        within("top_p", self.top_p, 0.0, 1.0)
        within("min_p", self.min_p, 0.0, 1.0)
        if self.top_p == 0:
            raise RequestError("top_p is 0: it must be above 0, at most 1")
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        whole("seed", self.seed, 0, MOST_SEED)

    @property
    def plain(self) -> bool:
        """Whether the device's argmax is all there is to do."""
        return self.temperature == 0 and self.repetition_penalty == 1


class Choice:
    """The choosing of one request: its generator, and what it has seen."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.sampling = sampling
        self.bits = np.random.PCG64(sampling.seed)
        self.seen = np.unique(np.asarray(prompt, np.int64)) if sampling.repetition_penalty != 1 else None

    def uniform(self) -> float:
        """A number in [0, 1) of 53 random bits, from the generator's raw words, which numpy promises not to change."""
        return float(int(self.bits.random_raw()) >> 11) * 2.0**-53

    def pick(self, logits: NDArray[np.float32]) -> int:
        """The next token from logits [vocab] without NaN; NOT_A_TOKEN if no logit is finite or one is +inf."""
        sampling = self.sampling
        if self.seen is not None:
            logits = logits.copy()
            scores = logits[self.seen]
            penalty = np.float32(sampling.repetition_penalty)
            logits[self.seen] = np.where(scores > 0, scores / penalty, scores * penalty)
        if sampling.temperature == 0:
            token = int(logits.argmax())
        else:
            token = draw(logits, sampling, self.uniform())
        if self.seen is not None:
            at = int(np.searchsorted(self.seen, token))
            if at == len(self.seen) or self.seen[at] != token:
                self.seen = np.insert(self.seen, at, token)
        return token


class Sampler:
    """Chooses for every request of a step."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}  # by request id; those that need more than the argmax

    def add(self, request: int, sampling: Sampling, prompt: Sequence[int]) -> None:
        """Make ready to choose for a request. Changes the sampler."""
        if not sampling.plain:
            self.choices[request] = Choice(sampling, prompt)

    def drop(self, request: int) -> None:
        """Forget a request. Changes the sampler."""
        self.choices.pop(request, None)

    def pick(self, best: NDArray[np.int32], logits: NDArray[np.float32], step: Step) -> list[int]:
        """One token for each part that wants one, in order; NOT_A_TOKEN where the logits are not numbers.

        best int32 [rows], each row's argmax or -1 for NaN; logits float32 [rows, vocab]. Changes the generators.
        """
        tokens: list[int] = best.tolist()
        if not self.choices:
            return tokens
        row = 0
        for part in step.parts:
            if part.rows:
                choice = self.choices.get(part.request)
                if choice is not None and tokens[row] != NOT_A_TOKEN:
                    tokens[row] = choice.pick(logits[row])
                row += 1
        return tokens


def draw(logits: NDArray[np.float32], sampling: Sampling, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of what is left of the distribution, in falling order of logits."""
    ids = shortlist(logits, sampling)
    if ids is None:
        scores = logits.astype(np.float64)
        best = scores.max()
    else:
        scores = logits[ids].astype(np.float64)
        best = scores[0]
    if not isfinite(best):
        return NOT_A_TOKEN
    with np.errstate(over="ignore"):  # a tiny temperature: all but the greatest become -inf, and weigh nothing
        weights = np.exp((scores - best) / sampling.temperature)
    sums = np.cumsum(weights)
    # Not past the end, should rounding make uniform * total reach the total.
    at = min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), len(sums) - 1)
    return at if ids is None else int(ids[at])


def shortlist(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.intp] | None:
    """Ids that top-k, top-p and min-p leave, in falling order of logits, lower ids first among equals; None for all."""
    top_k = sampling.top_k if 0 < sampling.top_k < len(logits) else 0
    if top_k:
        ids = greatest(logits, top_k)
        if sampling.top_p == 1 and sampling.min_p == 0:
            return ids
        scores = logits[ids].astype(np.float64)
        sums = np.cumsum(np.exp(scores - scores[0])) if isfinite(scores[0]) else np.ones(len(ids))
        total = sums[-1]
    elif sampling.top_p < 1:
        ids, scores, sums, total = _likeliest(logits, sampling.top_p)
    elif sampling.min_p > 0:
        ids = np.flatnonzero(logits >= logits.max() + np.float32(log(sampling.min_p)))
        return ids[np.argsort(-logits[ids], kind="stable")]
    else:
        return None
    kept = len(ids)
    if sampling.top_p < 1:
        kept = min(kept, int(np.searchsorted(sums, sampling.top_p * total)) + 1)
    if sampling.min_p > 0:
        kept = min(kept, int(np.count_nonzero(scores >= scores[0] + log(sampling.min_p))))
    return ids[: max(1, kept)]


def _likeliest(
    logits: NDArray[np.float32], top_p: float
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64], float]:
    """As many of the greatest logits as hold a probability of top_p: ids, logits, running sums, and the sum of all."""
    best = float(logits.max())
    if not isfinite(best):
        return np.zeros(1, np.intp), np.full(1, best), np.ones(1), 1.0
    total = float(np.exp(logits.astype(np.float64) - best).sum())
    count = FIRST_CANDIDATES
    while True:
        ids = greatest(logits, min(count, len(logits)))
        scores = logits[ids].astype(np.float64)
        sums = np.cumsum(np.exp(scores - best))
        if sums[-1] >= top_p * total or len(ids) == len(logits):
            return ids, scores, sums, total
        count *= 4


def within(name: str, value: float, low: float, high: float) -> None:
    """Raise RequestError unless `value` is a number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name} is {value}: it must be a number from {low:g} to {high:g}")


def whole(name: str, value: int, low: int, high: int) -> None:
    """Raise RequestError unless `value` is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} is {value}: it must be a whole number from {low} to {high}")
