"""Logits processors: penalties, biases and bans, which depend on a request's options and its tokens."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.sampling.sampler_params import Sampling

Logits = NDArray[np.float32]


class LogitsProcessor(Protocol):
    """Changes logits; its state follows the sampled tokens."""

    def apply(self, logits: Logits) -> None:
        """Change a row of logits [vocab]."""

    def accept(self, token: int) -> None:
        """Note a sampled token. Changes the processor."""


class LogitBias:
    """`logit_bias`."""

    def __init__(self, sampling: Sampling, vocab: int) -> None:
        biases = {token: bias for token, bias in sampling.logit_bias.items() if token < vocab}
        self.tokens = np.fromiter(biases, np.int64, len(biases))
        self.values = np.fromiter(biases.values(), np.float32, len(biases))

    def apply(self, logits: Logits) -> None:
        logits[self.tokens] += self.values

    def accept(self, token: int) -> None:
        """Nothing changes."""


class RepetitionPenalty:
    """`repetition_penalty`, for the tokens of prompt and answer."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.penalty = np.float32(sampling.repetition_penalty)
        self.seen_tokens = np.unique(np.asarray(prompt, np.int64))

    def apply(self, logits: Logits) -> None:
        scores = logits[self.seen_tokens]
        logits[self.seen_tokens] = np.where(scores > 0, scores / self.penalty, scores * self.penalty)

    def accept(self, token: int) -> None:
        at = int(np.searchsorted(self.seen_tokens, token))
        if at == len(self.seen_tokens) or self.seen_tokens[at] != token:
            self.seen_tokens = np.insert(self.seen_tokens, at, token)


class PresencePenalty:
    """`presence_penalty` and `frequency_penalty`, for the tokens of the answer."""

    def __init__(self, sampling: Sampling) -> None:
        self.presence, self.frequency = np.float32(sampling.presence_penalty), np.float32(sampling.frequency_penalty)
        self.indices: dict[int, int] = {}  # by token
        self.tokens = np.empty(16, np.int64)
        self.counts = np.zeros(16, np.float32)

    def apply(self, logits: Logits) -> None:
        count = len(self.indices)
        logits[self.tokens[:count]] -= self.presence + self.frequency * self.counts[:count]

    def accept(self, token: int) -> None:
        index = self.indices.setdefault(token, len(self.indices))
        if index == len(self.tokens):
            self.tokens, self.counts = double_capacity(self.tokens), double_capacity(self.counts)
        self.tokens[index] = token
        self.counts[index] += 1


class DryPenalty:
    """DRY: `runs[i]` is the number of tokens up to position i that equal the last ones of the text."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.sampling = sampling
        self.breakers = sampling.dry_breakers
        recent = prompt[-sampling.dry_range :]
        self.length = len(recent)
        room = max(64, 2 * self.length)
        self.tokens, self.runs = np.zeros(room, np.int64), np.zeros(room, np.int64)
        self.tokens[: self.length], self.runs[: self.length] = recent, match_lengths(recent, self.breakers)

    def accept(self, token: int) -> None:
        end = self.length
        if end == len(self.tokens):
            self.tokens, self.runs = double_capacity(self.tokens), double_capacity(self.runs)
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
    """`min_tokens`: stop ids are impossible at first."""

    def __init__(self, sampling: Sampling, stop_ids: Sequence[int]) -> None:
        self.num_remaining = sampling.min_tokens
        self.stop_ids = np.asarray(stop_ids, np.int64)

    def apply(self, logits: Logits) -> None:
        if self.num_remaining > 0:
            logits[self.stop_ids] = -np.inf

    def accept(self, token: int) -> None:
        self.num_remaining -= 1


def make_logits_processors(
    sampling: Sampling, prompt: Sequence[int], stop_ids: Sequence[int], vocab: int
) -> list[LogitsProcessor]:
    """Return the logits processors of a request, in order."""
    processors: list[LogitsProcessor] = []
    if sampling.logit_bias:
        processors.append(LogitBias(sampling, vocab))
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenalty(sampling, prompt))
    if sampling.presence_penalty or sampling.frequency_penalty:
        processors.append(PresencePenalty(sampling))
    if sampling.dry_multiplier:
        processors.append(DryPenalty(sampling, prompt))
    if sampling.min_tokens:
        processors.append(MinTokens(sampling, [token for token in stop_ids if token < vocab]))
    return processors


def match_lengths(text: Sequence[int], breakers: frozenset[int]) -> NDArray[np.int64]:
    """Return how many tokens up to each position equal the last ones of the text, 0 at the last: int64 [tokens].

    No match reaches across a breaker. In linear time, by the Z algorithm (Gusfield 1997) from the end: token by token,
    as `DryPenalty.accept` does it, a long prompt would take seconds.
    """
    last = len(text) - 1
    clear = next((back for back in range(len(text)) if text[last - back] in breakers), len(text))
    runs = [0] * len(text)
    left = right = 0  # the stretch [left, right), counted from the end, equals the end of the text
    for back in range(1, len(text)):
        run = min(right - back, runs[last - back + left]) if back < right else 0
        while back + run <= last and text[last - back - run] == text[last - run]:
            run += 1
        if back + run > right:
            left, right = back, back + run
        runs[last - back] = run
    return np.minimum(np.asarray(runs, np.int64), clear)


def double_capacity(array: np.ndarray) -> np.ndarray:
    """Return a copy with as many zeros again at the end."""
    return np.concatenate([array, np.zeros_like(array)])
