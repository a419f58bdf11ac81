"""Tuning: the fastest candidate replaces the numbers in use, if it is clearly faster; one that fails is left out."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from sporelm.backends.opencl import kernel_tuning
from sporelm.errors import BackendError


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(kernel_tuning, "perf_counter", clock)
    return clock


@pytest.mark.parametrize(("times", "chosen"), [({1: 1.0, 2: 0.5, 4: 0.8}, 2), ({1: 1.0, 2: 0.99}, 1)])
def test_the_fastest_is_chosen_if_clearly_faster(
    opencl: Any, clock: Clock, times: dict[int, float], chosen: int
) -> None:
    opencl.tuning = replace(opencl.tuning, few_rows=1)

    def run() -> None:
        if opencl.tuning.few_rows == 8:
            raise BackendError("too many registers")
        clock.now += times[opencl.tuning.few_rows]

    row = kernel_tuning._choose(opencl, "test", [{"few_rows": rows} for rows in (*times, 8)], run)
    assert opencl.tuning.few_rows == chosen
    assert (row.before, row.after) == ({"few_rows": 1}, {"few_rows": chosen})
    assert (row.before_s, row.after_s) == pytest.approx((times[1], times[chosen]))


def test_a_failure_of_the_numbers_in_use_is_an_error(opencl: Any) -> None:
    def run() -> None:
        raise BackendError("lost")

    with pytest.raises(BackendError, match="lost"):
        kernel_tuning._choose(opencl, "test", [{"few_rows": 2}], run)


def test_numbers_in_use_that_do_not_run_are_replaced(opencl: Any, clock: Clock) -> None:
    opencl.tuning = replace(opencl.tuning, few_rows=1)

    def run() -> None:
        if opencl.tuning.few_rows == 1:
            raise BackendError("too many registers")
        clock.now += 1.0

    row = kernel_tuning._choose(opencl, "test", [{"few_rows": 1}, {"few_rows": 2}], run)
    assert opencl.tuning.few_rows == 2
    assert row.as_json() == {
        "name": "test",
        "before": {"few_rows": 1},
        "after": {"few_rows": 2},
        "before_s": None,
        "after_s": pytest.approx(1.0),
        "gain": None,
    }


@pytest.mark.all
def test_a_whole_device_is_measured(opencl: Any) -> None:
    tuning, rows = kernel_tuning.tune_device(opencl)
    assert tuning == opencl.tuning
    assert [row.name for row in rows] == ["one token", "many tokens", "slabs", "elementwise", "rows", "attention"]
