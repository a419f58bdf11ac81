"""What a request has seen and said, and what that does to its logits."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.sampling.params import Sampling

Logits = NDArray[np.float32]


class LogitsProcessor(Protocol):
    """One change of logits, and what it learns from the token that was chosen."""

    def apply(self, logits: Logits) -> None:
        """Change a row of logits [vocab]."""

    def accept(self, token: int) -> None:
        """A token was chosen."""


class LogitBias:
    """`logit_bias`."""

    def __init__(self, sampling: Sampling, vocab: int) -> None:
        known = {token: bias for token, bias in sampling.logit_bias.items() if token < vocab}
        self.tokens = np.fromiter(known, np.int64, len(known))
        self.values = np.fromiter(known.values(), np.float32, len(known))

    def apply(self, logits: Logits) -> None:
        logits[self.tokens] += self.values

    def accept(self, token: int) -> None:
        """Nothing changes."""


class RepetitionPenalty:
    """`repetition_penalty`, of the tokens of prompt and answer."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.penalty = np.float32(sampling.repetition_penalty)
        self.seen = np.unique(np.asarray(prompt, np.int64))

    def apply(self, logits: Logits) -> None:
        scores = logits[self.seen]
        logits[self.seen] = np.where(scores > 0, scores / self.penalty, scores * self.penalty)

    def accept(self, token: int) -> None:
        at = int(np.searchsorted(self.seen, token))
        if at == len(self.seen) or self.seen[at] != token:
            self.seen = np.insert(self.seen, at, token)


class PresencePenalty:
    """`presence_penalty` and `frequency_penalty`, of the tokens of the answer."""

    def __init__(self, sampling: Sampling) -> None:
        self.presence, self.frequency = np.float32(sampling.presence_penalty), np.float32(sampling.frequency_penalty)
        self.places: dict[int, int] = {}
        self.tokens = np.empty(16, np.int64)
        self.counts = np.zeros(16, np.float32)

    def apply(self, logits: Logits) -> None:
        said = len(self.places)
        logits[self.tokens[:said]] -= self.presence + self.frequency * self.counts[:said]

    def accept(self, token: int) -> None:
        place = self.places.setdefault(token, len(self.places))
        if place == len(self.tokens):
            self.tokens, self.counts = (
                np.concatenate([held, np.zeros_like(held)]) for held in (self.tokens, self.counts)
            )
        self.tokens[place] = token
        self.counts[place] += 1


class DryPenalty:
    """DRY: `runs[i]` says how many tokens up to position i are the last ones of the text too."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.sampling = sampling
        self.breakers = sampling.dry_breakers
        seen = prompt[-sampling.dry_range :]
        self.length = len(seen)
        room = max(64, 2 * self.length)
        self.tokens, self.runs = np.zeros(room, np.int64), np.zeros(room, np.int64)
        self.tokens[: self.length], self.runs[: self.length] = seen, runs_of(seen, self.breakers)

    def accept(self, token: int) -> None:
        end = self.length
        if end == len(self.tokens):
            self.tokens, self.runs = doubled(self.tokens), doubled(self.runs)
        before, runs = self.tokens[:end], self.runs[:end]
        if token in self.breakers:
            runs[:] = 0
        else:
            runs[1:] = runs[:-1] + 1
            runs[:1] = 1
            runs[before != token] = 0
        self.tokens[end], self.runs[end] = token, 0
        self.length = end + 1

    def apply(self, logits: Logits) -> None:
        sampling = self.sampling
        first = max(0, self.length - sampling.dry_range) if sampling.dry_range else 0
        # A run may not reach to before the range.
        runs = np.minimum(self.runs[first : self.length - 1], np.arange(1, self.length - first))
        places = np.flatnonzero(runs >= sampling.dry_allowed_length)
        if not len(places):
            return
        following, lengths = self.tokens[first + 1 + places], runs[places]
        order = np.argsort(lengths, kind="stable")  # of several runs before one token the longest counts: it comes last
        longest = np.zeros(len(logits), np.int64)
        longest[following[order]] = lengths[order]
        hit = np.flatnonzero(longest)
        hit = hit[~np.isin(hit, list(self.breakers))] if self.breakers else hit
        grown = np.minimum(longest[hit] - sampling.dry_allowed_length, 1000).astype(np.float64)
        with np.errstate(over="ignore"):
            penalty = sampling.dry_multiplier * np.power(sampling.dry_base, grown)
        logits[hit] -= np.minimum(penalty, 1e30).astype(np.float32)


class MinTokens:
    """`min_tokens`: the ends are impossible at first."""

    def __init__(self, sampling: Sampling, stop_ids: Sequence[int]) -> None:
        self.left = sampling.min_tokens
        self.stop_ids = np.asarray(stop_ids, np.int64)

    def apply(self, logits: Logits) -> None:
        if self.left > 0:
            logits[self.stop_ids] = -np.inf

    def accept(self, token: int) -> None:
        self.left -= 1


def make_logits_processors(
    sampling: Sampling, prompt: Sequence[int], stop_ids: Sequence[int], vocab: int
) -> list[LogitsProcessor]:
    """What a request's sampling does to logits, in order."""
    edits: list[LogitsProcessor] = []
    if sampling.logit_bias:
        edits.append(LogitBias(sampling, vocab))
    if sampling.repetition_penalty != 1:
        edits.append(RepetitionPenalty(sampling, prompt))
    if sampling.presence_penalty or sampling.frequency_penalty:
        edits.append(PresencePenalty(sampling))
    if sampling.dry_multiplier:
        edits.append(DryPenalty(sampling, prompt))
    if sampling.min_tokens:
        edits.append(MinTokens(sampling, [token for token in stop_ids if token < vocab]))
    return edits


def runs_of(text: Sequence[int], breakers: frozenset[int]) -> NDArray[np.int64]:
    """How many tokens up to each position are the last ones of the text too, the last position's own 0; nothing reaches
    across a breaker: int64 [tokens]. In linear time, by the Z algorithm (Gusfield 1997) from the end: token by token,
    as `Repetitions` learns what is said, a long prompt would take seconds."""
    last = len(text) - 1
    clear = next((back for back in range(len(text)) if text[last - back] in breakers), len(text))
    runs = [0] * len(text)
    left = right = 0  # the stretch [left, right), counted from the end, is known to be the text's own end
    for back in range(1, len(text)):
        run = min(right - back, runs[last - back + left]) if back < right else 0
        while back + run <= last and text[last - back - run] == text[last - run]:
            run += 1
        if back + run > right:
            left, right = back, back + run
        runs[last - back] = run
    return np.minimum(np.asarray(runs, np.int64), clear)


def doubled(held: np.ndarray) -> np.ndarray:
    """With as much room again at the end."""
    return np.concatenate([held, np.zeros_like(held)])
