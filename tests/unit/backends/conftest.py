"""Both back-ends of our own, opened once."""

from collections.abc import Iterator
from typing import Any

import pytest

from sporelm.backends.registry import open_backend


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A back-end with two threads."""
    opened = open_backend(request.param, threads=2)
    yield opened
    opened.close()
