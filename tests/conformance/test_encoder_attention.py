"""The equalities of attention of whole texts, bit for bit: a text alone and among others, one thread and several."""

from typing import Any

import numpy as np
import pytest

from conformance.same_results import assert_same
from cpu_targets import TARGETS
from sporelm import ops
from sporelm.evals.conformance.conformance_case import On

HEADS, KV_HEADS, DIM = 6, 3, 32
LENGTHS = (70, 1, 300, 17)
APART = -1  # in place of a half window: disentangled attention


def read(
    backend: Any, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], half_window: int | None
) -> list[np.ndarray]:
    """The rows of each of some texts that share a step."""
    starts = np.concatenate([[0], np.cumsum([len(q) for q, _, _ in parts])])
    q, k, v = (backend.tensor(np.concatenate([part[i] for part in parts])) for i in range(3))
    first = backend.tensor(starts.astype(np.int32))
    if half_window == APART:
        on = [np.tile(each.numpy(), 2)[:, : KV_HEADS * 2 * 16] for each in (q, k)]
        options = {"head_dim": DIM, "scale": DIM**-0.5, "buckets": 16, "max_distance": 64}
        found = ops.disentangled_attention(k, k, v, first, *map(backend.tensor, on), **options).numpy()
        return np.split(np.array(found), starts[1:-1])
    found = ops.encoder_attention(q, k, v, first, head_dim=DIM, scale=DIM**-0.5, half_window=half_window).numpy()
    return np.split(np.array(found), starts[1:-1])


def texts(backend: Any) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    on = On(backend, "texts")
    return [tuple(on.values(n, count * DIM) for count in (HEADS, KV_HEADS, KV_HEADS)) for n in LENGTHS]  # type: ignore[misc]


@pytest.mark.parametrize("half_window", [None, 40, APART])
@pytest.mark.parametrize(
    "opened_cpu",
    [pytest.param(target, marks=[pytest.mark.all] if target != TARGETS[0] else []) for target in TARGETS],
    indirect=True,
)
def test_a_text_is_the_same_alone_and_among_others(cpu: Any, half_window: int | None) -> None:
    parts = texts(cpu)
    together = read(cpu, parts, half_window)
    turned = read(cpu, parts[::-1], half_window)[::-1]
    for part, found, again in zip(parts, together, turned, strict=True):
        assert_same(found, again)
        assert_same(found, read(cpu, [part], half_window)[0])


@pytest.mark.parametrize("thread_pools", TARGETS[:1], indirect=True)
def test_threads_change_nothing(thread_pools: list[Any]) -> None:
    for half_window in (40, APART):
        wanted = [read(thread_pool, texts(thread_pool), half_window) for thread_pool in thread_pools]
        for found in wanted[1:]:
            for left, right in zip(found, wanted[0], strict=True):
                assert_same(left, right)
