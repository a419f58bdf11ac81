"""Collectives on the CPU: ranks with any number of threads, in plans and eager, beside ranks that run the reference."""

import itertools
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sporelm import ops
from sporelm.backends.cpu.cpu_backend import CpuBackend
from sporelm.backends.reference import ReferenceBackend
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.distributed.shared_memory_layout import CELL_BYTES, CELLS, SLOT_BYTES
from sporelm.errors import ContextError, RankLost
from sporelm.ops.collectives import Ranges
from sporelm.ops.spec import Spec, Symbol
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, I32

REFERENCE = 0  # as a number of threads
TOKENS = Symbol("tokens", 512)


class PythonGroup:
    """A group that no back-end has kernels for."""

    def __init__(self, group: SharedMemoryGroup) -> None:
        self.group, self.rank, self.size = group, group.rank, group.size
        self.log: list[str] = []

    def all_gather(self, array: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        self.log.append("all_gather")
        return self.group.all_gather(array, shapes)

    def send(self, array: np.ndarray, target: int) -> None:
        self.log.append("send")
        self.group.send(array, target)

    def receive(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int) -> np.ndarray:
        self.log.append("receive")
        return self.group.receive(shape, dtype, source)


def run_ranks(threads: Sequence[int], run_rank: Callable[[SharedMemoryGroup, Any], Any]) -> list[Any]:
    """Run each rank on a back-end with this number of threads; return the results or the errors in rank order."""
    groups, results = SharedMemoryGroup.create(len(threads)), [None] * len(threads)

    def run(group: SharedMemoryGroup, count: int) -> None:
        backend: Any = ReferenceBackend() if count == REFERENCE else CpuBackend(threads=count)
        try:
            results[group.rank] = run_rank(group, backend)
        except Exception as error:
            results[group.rank] = error
            group.abort()
        finally:
            backend.close()

    workers = [threading.Thread(target=run, args=pair, daemon=True) for pair in zip(groups, threads, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive()
    return results


def values_of(rank: int, shape: tuple[int, ...], number: int = 0) -> np.ndarray:
    return np.random.default_rng(1000 * number + rank).standard_normal(shape).astype(np.float32)


def sum_of(size: int, shape: tuple[int, ...], number: int = 0) -> np.ndarray:
    total = values_of(0, shape, number)
    for rank in range(1, size):
        total = total + values_of(rank, shape, number)
    return total


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_all_reduce_of_any_shape_and_threads(data: st.DataObject) -> None:
    threads = data.draw(st.lists(st.sampled_from([REFERENCE, 1, 2, 3]), min_size=1, max_size=4))
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3000)), min_size=1, max_size=4))

    def run_rank(group: SharedMemoryGroup, backend: Any) -> list[np.ndarray]:
        return [
            ops.all_reduce(backend.tensor(values_of(group.rank, shape, number)), group=group).numpy()
            for number, shape in enumerate(shapes)
        ]

    for found in run_ranks(threads, run_rank):
        for number, shape in enumerate(shapes):
            assert np.array_equal(found[number], sum_of(len(threads), shape, number))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_uneven_columns_are_joined(data: st.DataObject) -> None:
    threads = data.draw(st.lists(st.sampled_from([REFERENCE, 1, 2]), min_size=2, max_size=4))
    ends = [0, *data.draw(st.lists(st.integers(1, 1500), min_size=len(threads), max_size=len(threads)))]
    ends = np.cumsum(ends).tolist()
    ranges: Ranges = tuple(itertools.pairwise(ends))
    rows = data.draw(st.integers(1, 100))
    whole = values_of(0, (rows, ends[-1]))

    def run_rank(group: SharedMemoryGroup, backend: Any) -> tuple[np.ndarray, np.ndarray]:
        start, stop = ranges[group.rank]
        x = backend.tensor(np.ascontiguousarray(whole[:, start:stop]))
        joined = ops.all_gather(x, group=group, ranges=ranges)
        return joined.numpy(), ops.argmax_shards(x, group=group, ranges=ranges).numpy()

    for joined, ids in run_ranks(threads, run_rank):
        assert np.array_equal(joined, whole)
        assert np.array_equal(ids, whole.argmax(axis=-1))


def test_columns_of_a_rank_between_those_of_others_are_left_to_the_reference() -> None:
    ranges: Ranges = ((10, 20), (0, 30))

    def run_rank(group: SharedMemoryGroup, backend: Any) -> np.ndarray:
        start, stop = ranges[group.rank]
        x = backend.tensor(np.full((2, stop - start), group.rank, np.float32))
        return ops.all_gather(x, group=group, ranges=ranges).numpy()

    for found in run_ranks([1, 2], run_rank):
        assert found.tolist() == [[1] * 10 + [0] * 10 + [1] * 10] * 2


def plan_of(backend: Any, function: Callable[..., dict[str, Any]], width: int, rows: Any = TOKENS) -> Plan:
    return Plan(ops.trace(function, {"x": Spec((rows, width), F32)}), backend)


@pytest.mark.parametrize("threads", [(1, 1), (2, 1), (1, REFERENCE), (2, 3, 1)])
@pytest.mark.parametrize("width", [64, 100])
def test_a_plan_runs_collectives_in_one_program(threads: tuple[int, ...], width: int) -> None:
    """In every bucket, and in pieces: 512 rows are more than a slot."""
    extents = (1, 5, 512, 1, 200, 512)

    def run_rank(group: SharedMemoryGroup, backend: Any) -> list[np.ndarray]:
        def step(x: Any) -> dict[str, Any]:
            once = ops.all_reduce(ops.scale(x, factor=2.0), group=group)
            ranges = tuple((width * rank, width * (rank + 1)) for rank in range(group.size))
            return {
                "twice": ops.all_reduce(once, group=group),
                "wide": ops.all_gather(once, group=group, ranges=ranges),
            }

        plan = plan_of(backend, step, width)
        assert plan.fallback_calls == {} or isinstance(backend, ReferenceBackend)
        found = []
        for count in extents:
            outputs = plan.run({"x": values_of(group.rank, (count, width))}, {"tokens": count})
            found += [outputs["twice"].copy(), outputs["wide"].copy()]
        return found

    results = run_ranks(threads, run_rank)
    for found in results:
        for number, count in enumerate(extents):
            total = sum(values_of(rank, (count, width)) * np.float32(2) for rank in range(len(threads)))
            np.testing.assert_allclose(found[2 * number], total * len(threads), rtol=1e-5, atol=1e-5)
        assert all(np.array_equal(mine, other) for mine, other in zip(found, results[0], strict=True))


def test_no_rows_exchange_nothing() -> None:
    rows = Symbol("rows", 8)

    def run_rank(group: SharedMemoryGroup, backend: Any) -> list[tuple[int, ...]]:
        def step(x: Any) -> dict[str, Any]:
            ids = ops.argmax_shards(x, group=group, ranges=((0, 5), (5, 10)))
            return {"ids": ids, "sum": ops.all_reduce(x, group=group)}

        plan = plan_of(backend, step, 5, rows)
        shapes = []
        for count in (0, 3, 0, 1):
            outputs = plan.run({"x": values_of(group.rank, (count, 5))}, {"rows": count})
            shapes += [outputs["ids"].shape, outputs["sum"].shape]
        return shapes

    for threads in ([1, 2], [REFERENCE, 1]):
        for found in run_ranks(threads, run_rank):
            assert found == [(0,), (0, 5), (3,), (3, 5), (0,), (0, 5), (1,), (1, 5)]


@pytest.mark.parametrize("threads", [(1, 1), (2, 2), (1, REFERENCE), (REFERENCE, 2)])
def test_stages_pass_rows_and_run_ahead(threads: tuple[int, int]) -> None:
    """Also rows of more bytes than a mailbox."""
    counts = (1, 3, 512, 2)
    width = CELL_BYTES * CELLS // 4 // 512 + 70

    def run_rank(group: SharedMemoryGroup, backend: Any) -> list[np.ndarray]:
        def first(x: Any) -> dict[str, Any]:
            ops.send(ops.scale(x, factor=2.0), group=group, target=1)
            return {"x": ops.receive(x, group=group, source=1, row_shape=(7,))}

        def second(x: Any) -> dict[str, Any]:
            y = ops.receive(x, group=group, source=0, row_shape=(width,))
            ops.send(x, group=group, target=0)
            return {"x": y}

        plan = plan_of(backend, second if group.rank else first, 7 if group.rank else width)
        columns = 7 if group.rank else width
        return [plan.run({"x": values_of(3, (count, columns))}, {"tokens": count})["x"].copy() for count in counts]

    found = run_ranks(threads, run_rank)
    for number, count in enumerate(counts):
        assert np.array_equal(found[0][number], values_of(3, (count, 7)))
        assert np.array_equal(found[1][number], values_of(3, (count, width)) * 2)


@pytest.mark.parametrize("threads", [(1, 2), (1, REFERENCE), (REFERENCE, 1)])
def test_stages_pass_values_of_any_shape(threads: tuple[int, int]) -> None:
    """Values of one and three dimensions, and whole numbers."""
    shapes = {"ids": ((), I32), "column": ((), F32), "heads": ((3, 70), F32), "pairs": ((5,), I32)}

    def run_rank(group: SharedMemoryGroup, backend: Any) -> list[np.ndarray]:
        def step(**x: Any) -> dict[str, Any]:
            if group.rank == 0:
                for value in x.values():
                    ops.send(value, group=group, target=1)
                return {"row": ops.scale(x["row"], factor=1.0)}
            return {
                name: ops.receive(x["row"], group=group, source=0, row_shape=shape, dtype=dtype)
                for name, (shape, dtype) in (shapes | {"row": ((4,), F32)}).items()
            }

        inputs = {name: Spec((TOKENS, *shape), dtype) for name, (shape, dtype) in shapes.items()}
        inputs["row"] = Spec((TOKENS, 4), F32)
        plan = Plan(ops.trace(step, inputs if group.rank == 0 else {"row": inputs["row"]}), backend)
        assert plan.fallback_calls == {} or isinstance(backend, ReferenceBackend)
        found = []
        for count in (1, 300):
            arrays = {
                name: (100 * values_of(4, (count, *value.shape[1:]))).astype(value.dtype.numpy)
                for name, value in plan.graph.inputs.items()
            }
            outputs = plan.run(arrays, {"tokens": count})
            if group.rank == 0:
                found.append(arrays)
            else:
                found.append({name: array.copy() for name, array in outputs.items()})
        return found

    sent, received = run_ranks(threads, run_rank)
    for mine, other in zip(sent, received, strict=True):
        for name, array in mine.items():
            assert other[name].dtype == array.dtype
            assert np.array_equal(other[name], array)


def test_programs_of_a_rank_and_eager_calls_share_the_group() -> None:
    def run_rank(group: SharedMemoryGroup, backend: Any) -> list[np.ndarray]:
        def step(x: Any) -> dict[str, Any]:
            return {"x": ops.all_reduce(x, group=group)}

        plans = [plan_of(backend, step, width) for width in (10, 20)]
        found = []
        for number in range(6):
            width = (10, 20)[number % 2]
            x = values_of(group.rank, (2, width), number)
            found.append(plans[number % 2].run({"x": x}, {"tokens": 2})["x"].copy())
            found.append(ops.all_reduce(backend.tensor(x), group=group).numpy())
            found.append(ops.all_reduce.reference(x, group=group))
        return found

    for found in run_ranks([1, 2, 1], run_rank):
        for number in range(6):
            for each in found[3 * number : 3 * number + 3]:
                assert np.array_equal(each, sum_of(3, (2, (10, 20)[number % 2]), number))


def test_other_groups_split_the_plan_and_keep_the_order() -> None:
    def run_rank(group: SharedMemoryGroup, backend: Any) -> tuple[np.ndarray, list[str]]:
        python, other = PythonGroup(group), 1 - group.rank

        def step(x: Any) -> dict[str, Any]:
            y = ops.all_reduce(ops.scale(x, factor=2.0), group=python)
            ops.send(ops.scale(y, factor=3.0), group=python, target=other)
            like = ops.scale(x, factor=1.0)
            z = ops.receive(like, group=python, source=other, row_shape=(9,))
            return {"x": ops.add(ops.all_reduce(y, group=group), z)}

        plan = plan_of(backend, step, 9)
        assert plan.fallback_calls == {"all_reduce": 1, "receive": 1, "send": 1}
        x = np.full((4, 9), group.rank + 1, np.float32)
        return plan.run({"x": x}, {"tokens": 4})["x"], python.log

    for found, log in run_ranks([1, 2], run_rank):
        assert found.tolist() == np.full((4, 9), 12.0 + 18.0).tolist()
        assert log == ["all_gather", "send", "receive"]


# ---- aborts


@pytest.mark.parametrize("threads", [1, 3])
def test_an_aborted_step_raises_and_leaves_the_threads_usable(threads: int) -> None:
    group, _ = SharedMemoryGroup.create(2)
    backend = CpuBackend(threads=threads)

    def step(x: Any) -> dict[str, Any]:
        y = ops.all_reduce(x, group=group)
        ops.send(y, group=group, target=1)
        return {"x": ops.add(y, ops.receive(x, group=group, source=1, row_shape=(600,)))}

    plan = plan_of(backend, step, 600)
    timer = threading.Timer(0.05, group.abort)
    timer.start()
    x = values_of(0, (SLOT_BYTES // 1000, 600))
    with pytest.raises(RankLost, match="aborted"):
        plan.run({"x": x}, {"tokens": len(x)})
    timer.join()
    with pytest.raises(RankLost):
        plan.run({"x": x}, {"tokens": len(x)})
    with pytest.raises(RankLost):
        ops.all_reduce(backend.tensor(x), group=group)
    assert np.array_equal(ops.scale(backend.tensor(x), factor=2.0).numpy(), x * 2)
    plan.close()
    backend.close()


def sum_for_ever(path: Path, started: Any) -> None:
    group, backend = SharedMemoryGroup.attach(path, 1), CpuBackend(threads=1)
    while True:
        ops.all_reduce(backend.tensor(np.ones((3, 100), np.float32)), group=group)
        started.set()


def test_a_step_that_waits_for_a_killed_process_ends_once_aborted(tmp_path: Path) -> None:
    path, spawn = tmp_path / "group", multiprocessing.get_context("spawn")
    SharedMemoryGroup.create_file(path, 2)
    started = spawn.Event()
    process = spawn.Process(target=sum_for_ever, args=(path, started), daemon=True)
    process.start()
    group, backend = SharedMemoryGroup.attach(path, 0), CpuBackend(threads=2)
    x = backend.tensor(np.ones((3, 100), np.float32))
    assert np.array_equal(ops.all_reduce(x, group=group).numpy(), np.full((3, 100), 2.0))
    assert started.wait(60)
    process.kill()
    process.join(60)
    timer = threading.Timer(0.2, group.abort)
    timer.start()

    def sum_twice() -> None:
        for _ in range(2):  # the process may have begun the next sum before it ended
            ops.all_reduce(x, group=group)

    with pytest.raises(RankLost):
        sum_twice()
    timer.join()
    backend.close()


def test_a_closed_group_is_refused_and_its_memory_outlives_it() -> None:
    (group,) = SharedMemoryGroup.create(1)
    backend = CpuBackend(threads=1)

    def step(x: Any) -> dict[str, Any]:
        return {"x": ops.all_reduce(x, group=group)}

    plan, x = plan_of(backend, step, 5), values_of(0, (2, 5))
    assert np.array_equal(plan.run({"x": x}, {"tokens": 2})["x"], x)
    group.close()
    with pytest.raises(ContextError, match="after close"):
        plan.run({"x": x}, {"tokens": 2})
    plan.close()
    backend.close()


def test_padding_of_rows_is_zero() -> None:
    """Products read whole vectors, so that a NaN beyond the width would spread."""
    (group,) = SharedMemoryGroup.create(1)
    backend = CpuBackend(threads=1)
    x = values_of(0, (3, 33))
    for found in (
        ops.all_reduce(backend.tensor(x), group=group),
        ops.all_gather(backend.tensor(x), group=group, ranges=((0, 33),)),
    ):
        rows = found.storage.array.view(np.float32).reshape(3, -1)
        assert np.array_equal(rows[:, :33], x)
        assert not rows[:, 33:].any()
    backend.close()
