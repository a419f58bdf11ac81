"""Contexts: use outside raises, resources are detached and bound again, each is freed in its own, leaks are told."""

import gc
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.context import Context, Resource
from sporelm.backends.cpu import CpuBackend
from sporelm.errors import BackendError, ContextError
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F16, F32


class Stream(Resource):
    """A resource that counts how often it was given back."""

    def __init__(self, context: Context, label: str = "stream") -> None:
        super().__init__(context, label)
        self.released = 0

    def release(self) -> None:
        self.released += 1


def test_a_resource_is_used_until_it_is_freed_and_freed_once() -> None:
    context = Context("device 0")
    stream = Stream(context)
    stream.check()
    assert context.live == [stream]
    stream.free()
    stream.free()
    assert stream.released == 1
    assert context.live == []
    with pytest.raises(ContextError, match="stream was freed by context device 0; create it again"):
        stream.check()


@pytest.mark.parametrize("use", [Resource.check, Resource.free, Resource.sporulate], ids=lambda use: use.__name__)
def test_a_detached_resource_is_of_no_use(use: Callable[[Resource], Any]) -> None:
    stream = Stream(Context("device 0"))
    assert stream.sporulate() is stream
    with pytest.raises(ContextError, match="stream is detached from context device 0; sprout"):
        use(stream)
    assert stream.released == 0


def test_a_detached_resource_sprouts_in_its_own_context_alone() -> None:
    context, other = Context("device 0"), Context("device 1")
    stream = Stream(context).sporulate()
    with pytest.raises(ContextError, match="belongs to context device 0, not to device 1"):
        stream.sprout(other)
    assert not stream.bound
    bound: list[bool] = []
    thread = Thread(target=lambda: bound.append(stream.sprout(context).bound))
    thread.start()
    thread.join()
    assert bound == [True]
    stream.check()
    with pytest.raises(ContextError, match="not to device 1"):
        stream.sprout(other)


def test_a_closed_context_takes_and_lends_nothing() -> None:
    context = Context("device 0")
    detached, freed = Stream(context).sporulate(), Stream(context)
    freed.free()
    context.close()
    for use in (context.check, lambda: Stream(context)):
        with pytest.raises(ContextError, match="context device 0: closed"):
            use()
    for resource in (detached, freed):
        with pytest.raises(ContextError, match="was freed"):
            resource.sprout(context)


def test_leaks_are_freed_and_reported_at_close() -> None:
    context = Context("device 0")
    held = [Stream(context, "b"), Stream(context, "a"), Stream(context, "c").sporulate(), Stream(context, "d")]
    held[3].free()
    assert context.close() == ["a", "b", "c"]
    assert [stream.released for stream in held] == [1, 1, 1, 1]
    assert context.close() == []
    assert [stream.released for stream in held] == [1, 1, 1, 1]


def test_an_unreferenced_resource_does_not_leak() -> None:
    context = Context("device 0")
    Stream(context)
    ring: list[Any] = [Stream(context)]
    ring.append(ring)
    del ring
    assert context.close() == []


# ---- the CPU keeps the same contract

SPECS = {"x": Spec((Symbol("tokens", 4), 8), F32)}
STEP: Any = ({"x": np.ones((2, 8), np.float32)}, {"tokens": 2})


def doubled(backend: CpuBackend) -> Plan:
    return Plan(trace(lambda x: {"y": ops.add(x, x)}, SPECS), backend)


def test_a_cpu_program_is_stored_and_bound_again() -> None:
    backend, other = CpuBackend(threads=1), CpuBackend(threads=1)
    plan = doubled(backend)
    program: Any = plan.bucket_program("few").program
    assert (plan.run(*STEP)["y"] == 2).all()
    program.sporulate()
    with pytest.raises(ContextError, match="program of 1 calls is detached from context cpu"):
        plan.run(*STEP)
    with pytest.raises(ContextError, match="belongs to context cpu"):
        program.sprout(other.context)
    program.sprout(backend.context)
    assert (plan.run(*STEP)["y"] == 2).all()
    plan.close()
    with pytest.raises(ContextError, match="was freed"):
        program.run(*STEP)
    assert (plan.run(*STEP)["y"] == 2).all(), "a plan compiles its programs again"
    plan.close()
    backend.close()
    other.close()


def test_freed_pages_are_of_no_use() -> None:
    backend = CpuBackend(threads=1)
    caches = backend.allocate_pages(2, [(1, 16), (1, 16)], F16)
    backend.free_pages(caches)
    with pytest.raises(ContextError, match="2 pages of 2 layers was freed"):
        backend.export_pages(caches[1], [0])
    rows, slots = backend.tensor(np.ones((1, 16), np.float32)), backend.tensor(np.zeros(1, np.int32))
    with pytest.raises(ContextError, match="was freed"):
        ops.store_kv(rows, rows, caches[0], slots)
    backend.close()


def test_a_closed_cpu_refuses_everything() -> None:
    backend = CpuBackend(threads=1)
    tensor = backend.tensor(np.ones((1, 8), np.float32))
    plan = doubled(backend)
    backend.close()
    backend.close()
    uses: list[Callable[[], Any]] = [
        tensor.numpy,
        lambda: backend.tensor(np.ones(3, np.float32)),
        lambda: backend.allocate_pages(1, [(1, 16)], F32),
        lambda: ops.add(tensor, tensor),
        lambda: plan.run(*STEP),
    ]
    for use in uses:
        with pytest.raises(BackendError, match="closed"):
            use()


def test_the_cpu_reports_its_leaks_at_close() -> None:
    backend = CpuBackend(threads=1)
    plan, caches = doubled(backend), backend.allocate_pages(3, [(1, 16)], F32)
    plan.run(*STEP)
    with pytest.warns(ResourceWarning, match="cpu was closed before 3 pages of 1 layers; program of 1 calls"):
        backend.close()
    with pytest.raises(ContextError, match="was freed"):
        plan.run(*STEP)
    with pytest.raises(ContextError, match="was freed"):
        backend.export_pages(caches[0], [0])


def test_eager_ops_leave_nothing_behind() -> None:
    backend = CpuBackend(threads=1)
    rows = backend.tensor(np.ones((2, 8), np.float32))
    ops.add(rows, rows)
    gc.collect()
    assert backend.context.live == []
    backend.close()
