"""Cases of ops on whole texts: three in one step, one of them longer than a page."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.protocol import Backend
from sporelm.evals.conformance_case import ConformanceCase, random_values

HEADS = 4
KV_HEADS = 2
HEAD_DIM = 26
STARTS = np.array([0, 5, 75, 76], np.int32)


def text_cases() -> Iterator[ConformanceCase]:
    for half_window in (None, 9):
        work = partial(attention, half_window=half_window)
        yield ConformanceCase("encoder_attention", f"half_window {half_window}", work)
    yield ConformanceCase("encoder_attention", "slopes", partial(attention, half_window=None, slopes=True))
    yield ConformanceCase("encoder_attention", "biases", partial(attention, half_window=None, biases=True))
    yield ConformanceCase("disentangled_attention", "", run_disentangled_attention)
    yield ConformanceCase("mean_rows", "", mean)


def attention(backend: Backend, *, half_window: int | None, slopes: bool = False, biases: bool = False) -> Any:
    wide = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    rows = [backend.tensor(random_values(STARTS[-1], width, seed=seed)) for seed, width in enumerate(wide)]
    given: list[Any] = [backend.tensor(STARTS), *([backend.tensor(np.abs(random_values(HEADS)) / 8)] if slopes else [])]
    given += [None, backend.tensor(random_values(HEADS, 256))] if biases else []
    return ops.encoder_attention(*rows, *given, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5, half_window=half_window)


def run_disentangled_attention(backend: Backend) -> Any:
    """Compute distances beyond those with a column of their own."""
    wide = *[HEADS * HEAD_DIM] * 3, *[HEADS * 2 * 16] * 2
    rows = [backend.tensor(random_values(STARTS[-1], width, seed=seed)) for seed, width in enumerate(wide)]
    options = {"head_dim": HEAD_DIM, "scale": HEAD_DIM**-0.5, "buckets": 16, "max_distance": 64}
    return ops.disentangled_attention(*rows[:3], backend.tensor(STARTS), *rows[3:], **options)


def mean(backend: Backend) -> Any:
    return ops.mean_rows(*map(backend.tensor, (random_values(STARTS[-1], 97), STARTS[:-1].copy(), STARTS[1:].copy())))
