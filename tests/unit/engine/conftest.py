"""A clock for tests of guesses, whose number depends on what steps and guessing take."""

from itertools import count

import pytest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that does not depend on the machine: every step takes as long as any other, and guessing no time."""
    ticks = count()
    monkeypatch.setattr("sporelm.engine.engine.perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr("sporelm.engine.speculative.speculation.perf_counter", lambda: 0.0)
