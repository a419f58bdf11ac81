"""Cases of ops on whole texts: three in one step, one of them longer than a page."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.backend import Backend
from sporelm.evals.case import Case, values

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 26
STARTS = np.array([0, 5, 75, 76], np.int32)


def text_cases() -> Iterator[Case]:
    for reach in (None, 9):
        yield Case("text_attention", f"reach {reach}", partial(attention, reach=reach))
    yield Case("text_attention", "slopes", partial(attention, reach=None, slopes=True))
    yield Case("text_attention", "biases", partial(attention, reach=None, biases=True))
    yield Case("apart_attention", "", apart)
    yield Case("mean_rows", "", mean)


def attention(backend: Backend, *, reach: int | None, slopes: bool = False, biases: bool = False) -> Any:
    wide = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    rows = [backend.tensor(values(STARTS[-1], width, seed=seed)) for seed, width in enumerate(wide)]
    given: list[Any] = [backend.tensor(STARTS), *([backend.tensor(np.abs(values(HEADS)) / 8)] if slopes else [])]
    given += [None, backend.tensor(values(HEADS, 256))] if biases else []
    return ops.text_attention(*rows, *given, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5, reach=reach)


def apart(backend: Backend) -> Any:
    """With more places between rows than have columns of their own."""
    wide = *[HEADS * HEAD_DIM] * 3, *[HEADS * 2 * 16] * 2
    rows = [backend.tensor(values(STARTS[-1], width, seed=seed)) for seed, width in enumerate(wide)]
    options = {"head_dim": HEAD_DIM, "scale": HEAD_DIM**-0.5, "buckets": 16, "farthest": 64}
    return ops.apart_attention(*rows[:3], backend.tensor(STARTS), *rows[3:], **options)


def mean(backend: Backend) -> Any:
    return ops.mean_rows(*map(backend.tensor, (values(STARTS[-1], 97), STARTS[:-1].copy(), STARTS[1:].copy())))
