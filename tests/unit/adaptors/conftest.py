"""Fixtures of the tests of adaptors."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from printing warnings."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(level)
