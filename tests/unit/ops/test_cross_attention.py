"""Attention of rows to spans of keys against its formula, row by row in float64."""

import numpy as np
import pytest

from close import assert_close
from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.ops.cross_attention import span_runs

BACKEND = ReferenceBackend()
DIM, HEADS, KV_HEADS = 5, 4, 2
SPANS = [(0, 7), (0, 7), (0, 7), (2, 3), (2, 9), (6, 9)]


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_each_row_mixes_the_values_of_its_span() -> None:
    q, k, v = random(6, HEADS * DIM, seed=0), random(9, KV_HEADS * DIM, seed=1), random(9, KV_HEADS * DIM, seed=2)
    given = [BACKEND.tensor(each) for each in (q, k, v, np.array(SPANS, np.int32))]
    found = ops.cross_attention(*given, head_dim=DIM, scale=0.7).numpy()
    for row, (begin, stop) in enumerate(SPANS):
        for head in range(HEADS):
            own, shared = slice(head * DIM, (head + 1) * DIM), slice(head // 2 * DIM, (head // 2 + 1) * DIM)
            weights = np.exp(0.7 * (k[begin:stop, shared].astype(np.float64) @ q[row, own]))
            assert_close(found[row, own], weights / weights.sum() @ v[begin:stop, shared], "f32")


@pytest.mark.parametrize(
    ("spans", "runs"),
    [
        ([], []),
        ([(3, 5)], [(0, 1, 3, 5)]),
        (SPANS, [(0, 3, 0, 7), (3, 4, 2, 3), (4, 5, 2, 9), (5, 6, 6, 9)]),
        ([(0, 1), (0, 1), (1, 2), (1, 2)], [(0, 2, 0, 1), (2, 4, 1, 2)]),
    ],
)
def test_runs_are_rows_with_equal_spans(spans: list[tuple[int, int]], runs: list[tuple[int, int, int, int]]) -> None:
    assert list(span_runs(np.array(spans, np.int32).reshape(-1, 2))) == runs
