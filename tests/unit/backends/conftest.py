"""The back-ends of our own, each opened once."""

from collections.abc import Iterator
from typing import Any

import pytest

from available import BACKENDS, open_available


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A back-end with two threads."""
    backend = open_available(request.param, threads=2)
    yield backend
    backend.close()
