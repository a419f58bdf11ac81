"""The equalities of attention of rows to spans of keys, bit for bit: in pieces, among others, planned, with threads."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from close import assert_close
from conformance.same_results import assert_same
from cpu_targets import TARGETS
from sporelm import ops
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, I32

HEADS, KV_HEADS, DIM = 4, 2, 40
OPTIONS = {"head_dim": DIM, "scale": DIM**-0.5}
PICTURES = (200, 33, 97)  # rows, which are also the keys

ON_TARGETS = pytest.mark.parametrize(
    "opened_cpu",
    [pytest.param(target, marks=[pytest.mark.all] if target != TARGETS[0] else []) for target in TARGETS],
    indirect=True,
)


Picture = tuple[np.ndarray, np.ndarray, np.ndarray]  # queries, keys and values


def attend(backend: Any, q: np.ndarray, k: np.ndarray, v: np.ndarray, spans: Any) -> np.ndarray:
    given = [backend.tensor(each) for each in (q, k, v)]
    found = ops.cross_attention(*given, backend.tensor(np.array(spans, np.int32)), **OPTIONS)
    return np.array(found.numpy())


def pictures() -> list[Picture]:
    random = np.random.default_rng(3)

    def values(rows: int, heads: int) -> np.ndarray:
        return random.standard_normal((rows, heads * DIM), np.float32)

    return [(values(rows, HEADS), values(rows, KV_HEADS), values(rows, KV_HEADS)) for rows in PICTURES]


def whole(backend: Any, picture: Picture) -> np.ndarray:
    q, k, v = picture
    return attend(backend, q, k, v, [(0, len(k))] * len(q))


def random_spans(seed: int, rows: int, keys: int) -> np.ndarray:
    """Spans of at least one key each, in no order."""
    bounds = np.sort(np.random.default_rng(seed).integers(0, keys - 1, (rows, 2)), axis=1)
    bounds[:, 1] += 1
    return bounds.astype(np.int32)


def sorted_order(spans: np.ndarray) -> np.ndarray:
    return np.lexsort((spans[:, 1], spans[:, 0]))


@ON_TARGETS
def test_a_picture_is_the_same_in_pieces(cpu: Any) -> None:
    q, k, v = pictures()[0]
    expected = whole(cpu, (q, k, v))
    for cuts in ((0, 1, 33, 200), (0, 130, 199, 200)):
        for first, last in pairwise(cuts):
            assert_same(attend(cpu, q[first:last], k, v, [(0, len(k))] * (last - first)), expected[first:last])


@ON_TARGETS
def test_a_picture_is_the_same_alone_and_among_others(cpu: Any) -> None:
    """Its keys begin elsewhere, and its rows share no tile with the same rows."""
    given = pictures()
    bounds = np.concatenate([[0], np.cumsum(PICTURES)])
    spans = np.repeat(np.stack([bounds[:-1], bounds[1:]], axis=1), PICTURES, axis=0)
    q, k, v = (np.concatenate([picture[part] for picture in given]) for part in range(3))
    together = attend(cpu, q, k, v, spans)
    for picture, start in zip(given, bounds[:-1], strict=True):
        assert_same(together[start : start + len(picture[0])], whole(cpu, picture))


@ON_TARGETS
def test_a_row_does_not_depend_on_its_neighbours(cpu: Any) -> None:
    q, k, v = pictures()[0]
    spans = random_spans(0, len(q), len(k))
    spans = spans[sorted_order(spans)]
    together = attend(cpu, q, k, v, spans)
    for row in range(0, len(q), 17):
        assert_same(together[row : row + 1], attend(cpu, q[row : row + 1], k, v, spans[row : row + 1]))


def test_spans_in_any_order_are_right_in_a_plan(cpu: Any, reference: Any) -> None:
    """Plans do not check indices: rows that are not sorted cost time only."""
    q, k, v = pictures()[0]
    spans = random_spans(1, len(q), len(k))
    order = sorted_order(spans)
    specs = {"q": Spec(q.shape, F32), "spans": Spec(spans.shape, I32)}
    held = [cpu.tensor(each) for each in (k, v)]
    graph = trace(lambda q, spans: {"out": ops.cross_attention(q, *held, spans, **OPTIONS)}, specs)
    plan = Plan(graph, cpu, max_tokens=len(q))
    found = plan.run({"q": q, "spans": spans}, {})["out"]
    assert_same(found[order], attend(cpu, q[order], k, v, spans[order]))
    assert_close(found[order], attend(reference, q[order], k, v, spans[order]), "f32")
    plan.close()


@ON_TARGETS
def test_layers_that_share_spans_are_the_same_eager_and_planned(cpu: Any) -> None:
    """Rows and keys are symbols; two layers have one cut into tiles, a third has spans of its own."""
    rows, keys = Symbol("rows", 300), Symbol("image_keys", 400)
    specs = {"q": Spec((rows, HEADS * DIM), F32), "k": Spec((keys, KV_HEADS * DIM), F32)}
    specs |= {"v": Spec((keys, KV_HEADS * DIM), F32), "near": Spec((rows, 2), I32), "far": Spec((rows, 2), I32)}

    def forward(q: Any, k: Any, v: Any, near: Any, far: Any) -> dict[str, Any]:
        first = ops.cross_attention(q, k, v, near, **OPTIONS)
        second = ops.cross_attention(ops.add(first, q), k, v, far, **OPTIONS)
        return {"out": ops.cross_attention(second, k, v, near, **OPTIONS)}

    plan = Plan(trace(forward, specs), cpu, max_tokens=300)
    random = np.random.default_rng(5)
    for count, seen in ((300, 400), (1, 1), (130, 60), (31, 200)):
        begin = np.arange(count) * seen // count
        arrays: dict[str, Any] = {
            name: random.standard_normal((number, heads * DIM), np.float32)
            for name, number, heads in (("q", count, HEADS), ("k", seen, KV_HEADS), ("v", seen, KV_HEADS))
        }
        arrays["near"] = np.stack([begin, np.minimum(begin + 13, seen)], axis=1).astype(np.int32)
        arrays["far"] = np.tile([0, seen], (count, 1)).astype(np.int32)
        found = np.array(plan.run(arrays, {"rows": count, "image_keys": seen})["out"])
        expected = forward(**{name: cpu.tensor(array) for name, array in arrays.items()})["out"].numpy()
        assert_same(found, np.array(expected))
    plan.close()


@pytest.mark.parametrize("thread_pools", TARGETS[:1], indirect=True)
def test_threads_change_nothing(thread_pools: list[Any]) -> None:
    first, *others = [[whole(backend, picture) for picture in pictures()] for backend in thread_pools]
    for found in others:
        for left, right in zip(found, first, strict=True):
            assert_same(left, right)
