"""Back-ends of the conformance tests: the reference, and the CPU on each target, in guarded memory."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from conformance.guarded_cpu import GuardedCpu
from cpu_targets import TARGETS
from sporelm.backends.reference import ReferenceBackend
from sporelm.evals.conformance.conformance_case import Arrays, Case


@pytest.fixture(scope="session")
def reference() -> ReferenceBackend:
    return ReferenceBackend()


@pytest.fixture(scope="session")
def expected(reference: ReferenceBackend) -> Callable[[Case], Arrays]:
    """A case's results on the reference, computed once for all targets."""
    return cache(lambda case: case.run(reference))


@pytest.fixture(scope="session")
def open_cpus() -> Iterator[Callable[[str], GuardedCpu]]:
    """The CPU on each target, opened when it is first asked for. A fixture that had the targets as its parameters would
    be closed, and opened again, after each row of a test's own list of (target, case)."""
    opened: dict[str, GuardedCpu] = {}

    def of(target: str) -> GuardedCpu:
        if target not in opened:
            opened[target] = GuardedCpu(target=target)
        return opened[target]

    yield of
    for backend in opened.values():
        backend.close()


@pytest.fixture(params=TARGETS)
def opened_cpu(request: pytest.FixtureRequest, open_cpus: Callable[[str], GuardedCpu]) -> GuardedCpu:
    return open_cpus(request.param)


@pytest.fixture
def cpu(opened_cpu: GuardedCpu) -> Iterator[Any]:
    """The CPU with two threads; after the test no fence may be broken."""
    yield opened_cpu
    opened_cpu.heap.check()


@pytest.fixture(scope="session", params=TARGETS)
def thread_pools(request: pytest.FixtureRequest) -> Iterator[list[GuardedCpu]]:
    """One target with one, two and three threads."""
    backends = [GuardedCpu(threads, request.param) for threads in (1, 2, 3)]
    yield backends
    for backend in backends:
        backend.close()
