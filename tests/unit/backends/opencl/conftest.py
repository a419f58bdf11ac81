"""An OpenCL back-end on the device at hand, or a skip with the reason."""

from collections.abc import Iterator
from typing import Any

import pytest

from available import open_available


@pytest.fixture
def opencl() -> Iterator[Any]:
    backend = open_available("opencl")
    yield backend
    backend.close()


@pytest.fixture
def reference() -> Iterator[Any]:
    backend = open_available("reference")
    yield backend
    backend.close()
