"""Back-ends of the conformance tests: the reference, and the CPU on each target, in guarded memory."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from conformance.case import Arrays, Case
from conformance.guarded import TARGETS, GuardedCpu, guarded
from sporelm.backends.reference import ReferenceBackend


@pytest.fixture(scope="session")
def reference() -> ReferenceBackend:
    return ReferenceBackend()


@pytest.fixture(scope="session")
def expected(reference: ReferenceBackend) -> Callable[[Case], Arrays]:
    """A case's results on the reference, computed once for all targets."""
    return cache(lambda case: case.run(reference))


@pytest.fixture(scope="session", params=TARGETS)
def opened_cpu(request: pytest.FixtureRequest) -> Iterator[GuardedCpu]:
    backend = guarded(request.param)
    yield backend
    backend.close()


@pytest.fixture
def cpu(opened_cpu: GuardedCpu) -> Iterator[Any]:
    """The CPU with two threads; after the test no fence may be broken."""
    yield opened_cpu
    opened_cpu.heap.check()


@pytest.fixture(scope="session", params=TARGETS)
def teams(request: pytest.FixtureRequest) -> Iterator[list[GuardedCpu]]:
    """One target with one, two and three threads."""
    backends = [guarded(request.param, threads) for threads in (1, 2, 3)]
    yield backends
    for backend in backends:
        backend.close()
