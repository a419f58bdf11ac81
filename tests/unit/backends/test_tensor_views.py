"""Tensors seen through views: ops, plans and numpy() show what the layout shows, on every back-end."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.errors import BackendError, OpError
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.quant import FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor

ROWS, WIDTH = 6, 10  # rows of 10 are padded on the CPU
VALUES = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)


def merged(layout: Layout) -> Layout:
    found = layout.merge(0, 2)
    assert found is not None
    return found


# each gives two dimensions
VIEWS: dict[str, tuple[Callable[[Layout], Layout], Callable[[np.ndarray], np.ndarray]]] = {
    "transposed": (lambda a: a.transpose((1, 0)), lambda a: a.T),
    "rows reversed": (lambda a: a.slice(0, ROWS - 1, -1, ROWS), lambda a: a[::-1]),
    "columns reversed": (lambda a: a.slice(1, WIDTH - 1, -1, WIDTH), lambda a: a[:, ::-1]),
    "every other row": (lambda a: a.slice(0, 1, 2, 3), lambda a: a[1::2]),
    "first rows": (lambda a: a.slice(0, 0, 1, 4), lambda a: a[:4]),
    "last rows": (lambda a: a.slice(0, 2, 1, 4), lambda a: a[2:]),
    "first columns": (lambda a: a.slice(1, 0, 1, 7), lambda a: a[:, :7]),
    "one row repeated": (lambda a: a.slice(0, 3, 0, 5), lambda a: np.repeat(a[3:4], 5, 0)),
    "broadcast": (lambda a: a.slice(0, 2, 1, 1).broadcast(0, 4), lambda a: np.broadcast_to(a[2:3], (4, WIDTH))),
    "other shape": (lambda a: merged(a).tile_be(0, (4, 15)), lambda a: a.reshape(4, 15)),
    "tiled and indexed": (lambda a: a.tile_be(1, (2, 5)).index(1, 1), lambda a: a[:, 5:]),
    "little end first": (lambda a: a.tile_le(1, (2, 5)).index(0, 4), lambda a: a[4].reshape(5, 2).T),
    "split": (lambda a: a.split(1, (3, 4, 3))[1], lambda a: a[:, 3:7]),
    "no rows": (lambda a: a.slice(0, 6, 1, 0), lambda a: a[6:]),
}
every_view = pytest.mark.parametrize("name", VIEWS)


def viewed(backend: Any, name: str) -> tuple[Tensor, np.ndarray]:
    change, expected = VIEWS[name]
    tensor = backend.tensor(VALUES)
    return tensor.view(change(tensor.layout)), expected(VALUES)


@every_view
def test_numpy_shows_the_view(backend: Any, name: str) -> None:
    view, expected = viewed(backend, name)
    assert np.array_equal(view.numpy(), expected)
    assert np.array_equal(view.contiguous().numpy(), expected)


@pytest.mark.parametrize("change", [lambda a: a, lambda a: a.slice(0, 0, 1, 4)], ids=["whole", "view"])
def test_what_numpy_gives_is_the_callers_own(backend: Any, change: Callable[[Layout], Layout]) -> None:
    tensor = backend.tensor(VALUES)
    shown = tensor.view(change(tensor.layout))
    before = shown.numpy()
    shown.numpy()[...] = -1
    assert np.array_equal(shown.numpy(), before)
    assert np.array_equal(tensor.numpy(), VALUES)


@every_view
def test_ops_compute_on_the_view(backend: Any, name: str) -> None:
    view, expected = viewed(backend, name)
    plain = backend.tensor(np.ascontiguousarray(expected))
    assert np.array_equal(ops.add(view, plain).numpy(), 2 * expected)
    assert np.array_equal(ops.add(plain, view).numpy(), 2 * expected)


@every_view
def test_a_constant_of_a_plan_may_be_a_view(backend: Any, name: str) -> None:
    view, expected = viewed(backend, name)
    if not expected.size:
        pytest.skip("a plan has at least one row")
    spec = Spec(expected.shape, F32)
    plan = Plan(trace(lambda x: {"y": ops.add(ops.add(x, view), view)}, {"x": spec}), backend)
    found = plan.run({"x": np.ones(expected.shape, np.float32)}, {})["y"]
    assert np.array_equal(found, 1 + 2 * expected)
    held = {id(call.args[1]) for call in plan.graph.calls}
    assert len(held) == 1, "one copy serves all uses"
    plan.close()


def test_vectors_of_a_plan_and_of_an_op_may_be_views(backend: Any) -> None:
    """A norm's weight: reversed, a row, a column, and cut short."""
    table = backend.tensor(VALUES)
    line = backend.tensor(VALUES[0])
    views = {
        "reversed": (line.view(line.layout.slice(0, WIDTH - 1, -1, WIDTH)), VALUES[0, ::-1]),
        "row": (table.view(table.layout.index(0, 3)), VALUES[3]),
        "column": (table.view(table.layout.index(1, 2)), VALUES[:, 2]),
        "short": (line.view(line.layout.slice(0, 0, 1, 7)), VALUES[0, :7]),
    }
    for name, (view, values) in views.items():
        x = np.random.default_rng(1).standard_normal((3, len(values)), np.float32)
        expected = ops.rms_norm(backend.tensor(x), backend.tensor(values.copy()), eps=1e-5).numpy()
        assert np.array_equal(ops.rms_norm(backend.tensor(x), view, eps=1e-5).numpy(), expected), name
        specs = {"x": Spec((Symbol("tokens", 4), len(values)), F32)}
        plan = Plan(trace(lambda x, weight=view: {"y": ops.rms_norm(x, weight, eps=1e-5)}, specs), backend)
        assert np.array_equal(plan.run({"x": x}, {"tokens": 3})["y"], expected), name
        plan.close()


def test_indices_may_be_a_view(backend: Any) -> None:
    rows = backend.tensor(np.array([5, 0, 3, 1], np.int32))
    view = rows.view(rows.layout.slice(0, 2, -2, 2))
    assert np.array_equal(ops.select_rows(backend.tensor(VALUES), view).numpy(), VALUES[[3, 5]])


def test_whole_tensors_are_not_copied(backend: Any) -> None:
    tensor = backend.tensor(VALUES)
    assert tensor.contiguous() is tensor
    same = tensor.view(tensor.layout.transpose((1, 0)).transpose((1, 0)))
    assert same.contiguous() is same


@pytest.mark.parametrize("layout", [Layout((6, 10), (10, 1), 1), Layout((2,), (-1,)), Layout((61,), (1,))])
def test_a_layout_that_leaves_the_tensor_is_refused(backend: Any, layout: Layout) -> None:
    with pytest.raises(OpError, match="there are elements 0 to 59"):
        backend.tensor(VALUES).view(layout).numpy()


def test_packed_weights_caches_and_rounded_rows_are_taken_whole(backend: Any) -> None:
    matrix = np.ones((32, 32), np.float32)
    form = FORMATS["Q8_0"]
    weight = backend.pack(StoredTensor("w", form, matrix.shape, quantize_tensor(form, matrix)))
    (cache,) = backend.allocate_pages(4, [(1, 16)], F32)
    x = backend.tensor(np.ones((2, 32), np.float32))
    rounded = ops.quantize_rows(x)
    narrow = backend.tensor(np.ones((2, 16), np.float32))
    slots = backend.tensor(np.zeros(2, np.int32))
    turned = weight.view(weight.layout.transpose((1, 0)))
    uses: list[Callable[[], Any]] = [
        lambda: ops.linear(x, turned),
        lambda: ops.linear(rounded.view(rounded.layout.slice(0, 1, -1, 2)), weight),
        lambda: ops.store_kv(narrow, narrow, cache.view(cache.layout.slice(0, 0, 1, 2)), slots),
        lambda: Plan(
            trace(lambda x: {"y": ops.linear(x, turned)}, {"x": Spec((Symbol("tokens", 4), 32), F32)}), backend
        ),
    ]
    for use in uses:
        with pytest.raises(BackendError, match=r"is a view|: not a whole cache|which is a view"):
            use()
    assert not backend.export_pages(cache, range(4)).any()
