"""Timed steps: the same results, and times that lie where the work was."""

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest

from sporelm.backends.cpu import CpuBackend
from sporelm.backends.cpu.jit import Compiler, emit_assembly_for
from sporelm.backends.cpu.runtime.call_times import call_times
from sporelm.backends.cpu.runtime.step_loops import StepLoops
from sporelm.backends.cpu.runtime.thread_pool import WAIT_POLICY, ThreadPool
from sporelm.backends.cpu.runtime.timed_loops import RECORD, TimedLoops
from sporelm.backends.cpu.targets import CpuTarget
from sporelm.backends.cpu.targets.arm import Neon
from sporelm.backends.protocol import CallTime, CallTimer
from sporelm.ops import Call, Spec, add, rms_norm
from sporelm.ops.graph import trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32
from unit.backends.cpu.other_machines import AVX2_TARGET, LINUX_ARM, LINUX_X86, MACOS_ARM
from unit.backends.cpu.thread_pool_work import CountingLoop

CALL = Call(add, (), {}, ())


@pytest.mark.parametrize("threads", [1, 3])
def test_every_item_is_done_once_and_timed(compiler: Compiler, threads: int) -> None:
    thread_pool = ThreadPool(compiler, threads)
    try:
        work = CountingLoop(compiler, threads)
        work.table.names = [(CALL, f"kernel {number}") for number in range(4)]
        thread_pool.run(work.table)
        assert thread_pool.take_times() == []
        thread_pool.time_steps()
        thread_pool.time_steps()  # a second call changes nothing
        began = perf_counter()
        for _ in range(20):
            thread_pool.run(work.table)
        ended = perf_counter()
        work.check(21)
        times = thread_pool.take_times()
        assert thread_pool.take_times() == []
        assert {time.thread for time in times} <= set(range(threads))
        for number in range(20):
            taken = [time for time in times if time.kernel == f"kernel {number % 4}"]
            assert len(taken) >= 20  # at least one thread had items of it
        for time in times:
            assert began <= time.began
            assert time.began + time.seconds <= ended + 1e-4
        of_first = [time for time in times if time.thread == 0]
        assert all(a.began <= b.began for a, b in pairwise(of_first))
    finally:
        thread_pool.close()


def test_a_timed_thread_pool_without_items_or_names(compiler: Compiler) -> None:
    thread_pool = ThreadPool(compiler, 2)
    thread_pool.time_steps()
    work = CountingLoop(compiler, 2, items=0, grain=1)
    work.table.names = [(CALL, "none")] * 4
    thread_pool.run(work.table)
    unnamed = CountingLoop(compiler, 2)
    thread_pool.run(unnamed.table)
    unnamed.check(1)
    assert thread_pool.take_times() == []
    thread_pool.close()
    thread_pool.time_steps()  # closed: nothing to time


def test_ticks_become_seconds() -> None:
    # two threads; an entry, then a chain of two that are taken together; thread 1 had nothing of the first
    fields = RECORD // 8
    records = np.zeros((2, 3, fields), np.int64)
    records[0, 0, :3] = 1100, 1300, 150
    records[0, 1, :3] = 1400, 1900, 100
    records[0, 2, 2] = 300
    records[1, 0, :3] = 1200, 1210, 0
    records[1, 1, :3] = 1500, 1800, 200
    records[1, 2, 2] = 50
    names = [(CALL, name) for name in "abc"]
    found = call_times(np.array([1000, 2000]), records, [0, 1, 0], names, 5.0, 6.0)
    assert [(time.kernel, time.thread, round(time.began, 6), round(time.seconds, 6)) for time in found] == [
        ("a", 0, 5.1, 0.2),
        ("b", 0, 5.4, 0.1),
        ("c", 0, 5.5, 0.3),
        ("b", 1, 5.5, 0.2),
        ("c", 1, 5.7, 0.05),
    ]
    assert call_times(np.array([0, 0]), records, [0, 1, 0], names, 5.0, 6.0) == []  # a CPU without a counter


def test_a_plan_is_timed_by_its_calls() -> None:
    cpu = CpuBackend(2)
    assert isinstance(cpu, CallTimer)
    weight = cpu.tensor(np.ones(64, np.float32))
    graph = trace(lambda x, y: {"out": rms_norm(add(x, y), weight, eps=1e-5)}, dict.fromkeys("xy", Spec((40, 64), F32)))
    plan = Plan(graph, cpu)
    arrays = {name: np.full((40, 64), value, np.float32) for name, value in (("x", 1), ("y", 2))}
    plain = plan.run(arrays, {})["out"].copy()
    take: Callable[[], list[CallTime]] = cpu.time_calls()
    assert np.array_equal(plan.run(arrays, {})["out"], plain)
    times = take()
    assert {time.call.op.name for time in times} <= {"add", "rms_norm", "add_rms_norm"}
    assert sum(time.seconds for time in times) > 0
    plan.close()
    cpu.close()


@pytest.mark.parametrize(
    ("triple", "target", "instruction"),
    [(LINUX_X86, AVX2_TARGET, "rdtsc"), (LINUX_ARM, Neon(), "cntvct_el0"), (MACOS_ARM, Neon(), "cntvct_el0")],
)
def test_the_counter_of_each_kind_of_cpu(triple: str, target: CpuTarget, instruction: str) -> None:
    timed, usual = (emit_assembly_for(loops(WAIT_POLICY), target, triple).lower() for loops in (TimedLoops, StepLoops))
    # at the beginning and end of a step, of an entry's chunks and of a kernel
    assert timed.count(instruction) == usual.count(instruction) + 6
