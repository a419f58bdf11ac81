"""Cases of sampling on the device."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.protocol import Backend
from sporelm.evals.conformance_case import ConformanceCase, random_values

ROWS = 5
VOCAB = 1001
WORDS = -(-VOCAB // 32)
OPTIONS = {  # temperature, top_k, top_p, log(min_p)
    "greedy": (0, 0, 1, -np.inf),
    "all": (0.8, 0, 1, -np.inf),
    "top_k": (0.7, 20, 1, -np.inf),
    "top_p": (1.3, 0, 0.9, -np.inf),
    "min_p": (1, 0, 1, -3),
}


def sampling_cases() -> Iterator[ConformanceCase]:
    yield ConformanceCase("edit_logits", "", run_edit)
    yield ConformanceCase("mask_logits", "", run_mask)
    for name, options in OPTIONS.items():
        yield ConformanceCase("draw_tokens", name, partial(run_draw, options=options))
    yield ConformanceCase("choose_allowed", "", run_choose)
    yield ConformanceCase("place_tokens", "", run_place)
    yield ConformanceCase("take_sampled", "", run_take)
    yield ConformanceCase("token_logprobs", "", run_score)


def random_ints(*shape: int, low: int, high: int) -> np.ndarray:
    return np.random.default_rng([*shape]).integers(low, high, shape).astype(np.int32)


def run_edit(backend: Backend) -> Any:
    places = np.stack([np.arange(40) % ROWS, np.arange(40) * 25], axis=1).astype(np.int32)
    edits = np.abs(random_values(40, 3))
    return ops.edit_logits(backend.tensor(random_values(ROWS, VOCAB)), backend.tensor(places), backend.tensor(edits))


def run_mask(backend: Backend) -> Any:
    """Return a finite number in place of -inf: results are compared as shares of the greatest."""
    words = random_ints(3, WORDS, low=-(2**31), high=2**31)
    rows = backend.tensor(np.array([4, 0, 2], np.int32))
    masked = ops.mask_logits(backend.tensor(random_values(ROWS, VOCAB)), rows, backend.tensor(words))
    return np.maximum(masked.numpy(), -9)


def run_draw(backend: Backend, *, options: tuple[float, ...]) -> Any:
    columns = np.array([[*options, 0.1 + 0.2 * row] for row in range(ROWS)], np.float32)
    return ops.draw_tokens(backend.tensor(random_values(ROWS, VOCAB) * 4), backend.tensor(columns), k=300, whole=True)


def run_choose(backend: Backend) -> Any:
    draws = [random_ints(rows, 2, low=0, high=VOCAB) for rows in (ROWS, 3)]
    for drawn in draws:
        drawn[:, 1] %= 2
    first, second = map(backend.tensor, draws)
    places = backend.tensor(np.array([[4, 1], [-1, 1], [0, 0]], np.int32))
    words = backend.tensor(random_ints(3, WORDS, low=-(2**31), high=2**31))
    return ops.choose_allowed(first, places, words, second)


def run_place(backend: Backend) -> Any:
    greedy, draws = random_ints(ROWS, low=-1, high=VOCAB), random_ints(ROWS, 2, low=0, high=VOCAB)
    return ops.place_tokens(*map(backend.tensor, (greedy, draws)))


def run_take(backend: Backend) -> Any:
    ids, sampled = random_ints(20, low=0, high=VOCAB), random_ints(7, low=-1, high=VOCAB)
    return ops.take_sampled(*map(backend.tensor, (ids, random_ints(20, low=-1, high=7), sampled)))


def run_score(backend: Backend) -> Any:
    tokens, rows = random_ints(ROWS, low=0, high=VOCAB), np.array([2, 0, 2], np.int32)
    return ops.token_logprobs(*map(backend.tensor, (random_values(ROWS, VOCAB), tokens, rows)), k=20)
