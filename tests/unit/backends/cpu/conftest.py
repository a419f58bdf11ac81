"""Compilers and back-ends of each target; kernels that tests define go to a temporary cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpu_targets import TARGETS
from sporelm.backends.cpu import CpuBackend, targets
from sporelm.backends.cpu.jit import Compiler
from sporelm.backends.file_cache import ObjectCache


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Any:
    """Each target that this run tests."""
    return targets.available_targets()[request.param]


@pytest.fixture(scope="session")
def compiler(target: Any, tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """Keep tests' kernels out of the user's cache: the source digest does not cover them."""
    return Compiler(target, ObjectCache(tmp_path_factory.mktemp("kernels")))


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "kernels")


@pytest.fixture(scope="session")
def cpu() -> Iterator[CpuBackend]:
    """The best target with two threads, with the user's cache."""
    backend = CpuBackend(threads=2)
    yield backend
    backend.close()
