"""Choosing the next token of every request of a step, together.

`Sampling` says in which order. At temperature 0 the greatest logit is taken, the lowest id among equals. The same seed
gives the same tokens, whatever else runs: a request draws one number a token (two with XTC) from a generator of its own
(PCG64, O'Neill 2014), and what is computed of a row depends on no other row.
"""

from collections.abc import Sequence
from itertools import compress
from math import isfinite, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.sampling.candidates import greatest
from sporelm.engine.sampling.cut import Rows, drawn, left
from sporelm.engine.sampling.history import edits_of
from sporelm.engine.sampling.mirostat import Mirostat
from sporelm.engine.sampling.params import Sampling
from sporelm.engine.step import Step

Logits = NDArray[np.float32]

FIRST_CANDIDATES = 256  # looked at for top-p without top-k; four times as many until their probability suffices
BLOCK = 64  # neighbours whose weights are added up first where all tokens are kept
NOT_A_TOKEN = -1  # what argmax gives for a row with NaN


class TokenScores(NamedTuple):
    """Logarithms of probabilities at one position: of the token that was chosen, and of the likeliest."""

    logprob: float
    top: dict[int, float]  # by id, in falling order


class Choice:
    """The choosing of one request: its generator, and what it has seen."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], stop_ids: Sequence[int] = (), vocab: int = 0) -> None:
        self.sampling = sampling
        self.bits = np.random.PCG64(sampling.seed)
        self.edits = edits_of(sampling, prompt, stop_ids, vocab or 1 << 31)
        self.mirostat = Mirostat(sampling) if sampling.mirostat else None

    def uniform(self) -> float:
        """A number in [0, 1) of 53 random bits, from the generator's raw words, which numpy promises not to change."""
        return float(int(self.bits.random_raw()) >> 11) * 2.0**-53

    def accept(self, token: int) -> None:
        """The token was chosen."""
        for edit in self.edits:
            edit.accept(token)


class Picked(NamedTuple):
    """What a step gave: a token for each part that wanted one, and the scores of those who asked, by request."""

    tokens: list[int]
    scores: dict[int, TokenScores]


class Sampler:
    """Chooses for every request of a step."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}  # by request id; those that need more than the argmax

    def add(self, request: int, sampling: Sampling, prompt: Sequence[int], stop_ids: Sequence[int], vocab: int) -> None:
        """Make ready to choose for a request. Changes the sampler."""
        if not sampling.plain:
            self.choices[request] = Choice(sampling, prompt, stop_ids, vocab)

    def drop(self, request: int) -> None:
        """Forget a request. Changes the sampler."""
        self.choices.pop(request, None)

    def pick(self, best: NDArray[np.int32], logits: Logits, step: Step) -> Picked:
        """One token for each part that wants one, in order; NOT_A_TOKEN where the logits are not numbers.

        best int32 [rows], each row's argmax or -1 for NaN; logits float32 [rows, vocab]. Changes the generators.
        """
        tokens: list[int] = best.tolist()
        if not self.choices:
            return Picked(tokens, {})
        requests = [part.request for part in step.parts if part.rows]
        chosen = [row for row, request in enumerate(requests) if request in self.choices and tokens[row] != NOT_A_TOKEN]
        choices = [self.choices[requests[row]] for row in chosen]
        edited = any(choice.edits for choice in choices)
        rows = logits[chosen] if edited else _taken(logits, chosen)
        for row, token in zip(chosen, pick_rows(rows, choices), strict=True):
            tokens[row] = token
        scores = {}
        for row, choice in zip(chosen, choices, strict=True):
            if tokens[row] != NOT_A_TOKEN:
                choice.accept(tokens[row])
                if choice.sampling.logprobs is not None:
                    scores[requests[row]] = scores_of(logits[row], tokens[row], choice.sampling.logprobs)
        return Picked(tokens, scores)


def pick_rows(logits: Logits, choices: Sequence[Choice]) -> list[int]:
    """A token for each row of logits [rows, vocab] without NaN; NOT_A_TOKEN for a row in which none is finite or one is
    +inf. Changes rows whose choice has edits."""
    for row, choice in zip(logits, choices, strict=True):
        for edit in choice.edits:
            edit.apply(row)
    tokens: list[int] = logits.argmax(axis=1).tolist()
    finite = np.isfinite(logits[np.arange(len(tokens)), tokens])
    together: dict[int, list[int]] = {}  # rows by the number of candidates that they need at first; 0: all
    for row, choice in enumerate(choices):
        sampling = choice.sampling
        if not finite[row]:
            tokens[row] = NOT_A_TOKEN
        elif choice.mirostat is not None:
            tokens[row] = choice.mirostat.pick(logits[row], choice.uniform())
        elif sampling.temperature > 0:
            together.setdefault(first_candidates(sampling, logits.shape[1]), []).append(row)
    for count, rows in together.items():
        found = _draw(_taken(logits, rows), [choices[row] for row in rows], count)
        for row, token in zip(rows, found, strict=True):
            tokens[row] = token
    return tokens


def _taken(logits: Logits, rows: Sequence[int]) -> Logits:
    """These rows; the array itself where it is all of them."""
    return logits if len(rows) == len(logits) else logits[rows]


def first_candidates(sampling: Sampling, vocab: int) -> int:
    """How many of the greatest logits a row needs, at first; 0 if it needs none in order."""
    if 0 < sampling.top_k < vocab:
        return sampling.top_k
    is_cut = sampling.top_p < 1 or sampling.min_p > 0
    if sampling.typical_p < 1 or (sampling.xtc_probability > 0 and not is_cut):
        return vocab  # the expected surprise is of all of them, and XTC keeps the unlikely
    return min(FIRST_CANDIDATES, vocab) if is_cut else 0


def _draw(logits: Logits, choices: Sequence[Choice], count: int) -> list[int]:
    """A token for each row; all of them need `count` candidates at first."""
    samplings = [choice.sampling for choice in choices]
    coins = [choice.uniform() if choice.sampling.xtc_probability else 1.0 for choice in choices]
    uniforms = [choice.uniform() for choice in choices]
    if count == 0:
        return _of_all(logits, samplings, uniforms)
    tokens = [NOT_A_TOKEN] * len(choices)
    waiting = list(range(len(choices)))
    while waiting:
        rows, suffices = candidates(_taken(logits, waiting), [samplings[row] for row in waiting], count)
        ready = list(compress(waiting, suffices))
        if ready:
            rows = rows.only(suffices)
            chosen = [samplings[row] for row in ready]
            kept = left(rows, chosen, [coins[row] for row in ready])
            places = drawn(rows, kept, chosen, [uniforms[row] for row in ready])
            for row, ids, place in zip(ready, rows.ids, places, strict=True):
                tokens[row] = int(ids[place])
        waiting = [row for row, done in zip(waiting, suffices, strict=True) if not done]
        count = min(4 * count, logits.shape[1])
    return tokens


def candidates(logits: Logits, samplings: Sequence[Sampling], count: int) -> tuple[Rows, NDArray[np.bool_]]:
    """The `count` greatest of each row, and for which rows nothing beyond them can be left."""
    ids = greatest(logits, count)
    found = np.take_along_axis(logits, ids, axis=1)
    scores = found.astype(np.float64) - found[:, :1]
    sums = np.cumsum(np.exp(scores), axis=1)[:, -1]
    totals, suffices = sums.copy(), np.ones(len(logits), np.bool_)
    for row, sampling in enumerate(samplings):
        if count in (sampling.top_k, logits.shape[1]):
            continue
        suffices[row] = sampling.min_p > 0 and scores[row, -1] < log(sampling.min_p)
        if sampling.top_p < 1:
            totals[row] = np.exp(logits[row] - found[row, 0]).sum(dtype=np.float64)
            suffices[row] |= sums[row] >= sampling.top_p * totals[row]
    return Rows(ids, scores, totals), suffices


def _of_all(logits: Logits, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> list[int]:
    """Tokens drawn from whole rows: first a block of neighbours by its weight, then one of them."""
    rows, vocab = logits.shape
    best = logits.max(axis=1, keepdims=True)
    temperatures = np.array([[sampling.temperature] for sampling in samplings], np.float64)
    blocks = -(-vocab // BLOCK)
    weights = np.zeros((rows, blocks * BLOCK), np.float32)
    with np.errstate(over="ignore"):
        np.exp(((logits - best) / temperatures).astype(np.float32), out=weights[:, :vocab])
    sums = np.cumsum(weights.reshape(rows, blocks, BLOCK).sum(axis=2, dtype=np.float64), axis=1)
    wanted = np.asarray(uniforms) * sums[:, -1]
    tokens = []
    for row in range(rows):
        block = min(int(np.searchsorted(sums[row], wanted[row], side="right")), blocks - 1)
        inside = np.cumsum(weights[row, block * BLOCK : (block + 1) * BLOCK], dtype=np.float64)
        before = sums[row, block - 1] if block else 0.0
        place = int(np.searchsorted(inside, wanted[row] - before, side="right"))
        last = int(np.flatnonzero(np.diff(inside, prepend=0.0))[-1])
        tokens.append(block * BLOCK + min(place, last))
    return tokens


def scores_of(logits: Logits, token: int, count: int) -> TokenScores:
    """The token's log probability, and those of the `count` likeliest, of logits [vocab] as the model gave them."""
    exact = logits.astype(np.float64)
    best = exact.max()
    if not isfinite(best):
        return TokenScores(float("nan"), {})
    logs = exact - best
    logs -= np.log(np.exp(logs).sum())
    top = greatest(logits[None], count)[0].tolist() if count else []
    return TokenScores(float(logs[token]), {each: float(logs[each]) for each in top})
