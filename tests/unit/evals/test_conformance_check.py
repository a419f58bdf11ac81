"""Conformance where a back-end's number type is narrow: its tolerance, and results that the type cannot hold."""

from typing import Any

import numpy as np
import pytest

from sporelm.evals.conformance import check
from sporelm.evals.conformance.all_cases import CASES
from sporelm.evals.conformance.check import (
    OUT_OF_RANGE,
    check_backends,
    check_case,
    count_out_of_range,
    is_failure,
    is_within_types,
    leave_out_beyond,
)
from sporelm.ops.number_types import NumberTypes
from sporelm.tensor.dtype import BF16, F16, F32


class Narrow:
    """The reference with another declared type."""

    def __init__(self, reference: Any, types: NumberTypes) -> None:
        self._reference, self._types = reference, types

    def number_types(self, op: Any) -> NumberTypes:
        return self._types

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reference, name)


def open_narrow(activation: Any) -> Narrow:
    from available import open_available

    return Narrow(open_available("reference"), NumberTypes(activation))


def test_results_that_a_type_cannot_hold_are_left_out() -> None:
    expected = [np.array([1.0, -7e4, np.nan, np.inf, 65504.0], np.float32), np.array([9, 70000])]
    found = [np.array([2.0, np.inf, 0.0, 3.0, np.nan], np.float32), np.array([9, 1])]
    arrays, count = leave_out_beyond(found, expected, NumberTypes(F16))
    assert count == 2
    assert np.array_equal(arrays[0], np.array([2.0, -7e4, 0.0, 3.0, 65504.0], np.float32), equal_nan=True)
    assert arrays[1] is found[1]


def test_small_results_are_left_out_only_beside_no_larger_ones() -> None:
    small = np.array([-1.7e-14, 0.0], np.float32)
    assert leave_out_beyond([small * 0], [small], NumberTypes(F16))[1] == 1
    assert leave_out_beyond([small * 0], [small], NumberTypes(BF16))[1] == 0
    mixed = np.array([-1.7e-14, 1.0], np.float32)
    assert leave_out_beyond([mixed * 0], [mixed], NumberTypes(F16))[1] == 0


def test_pages_of_halves_are_compared_where_the_type_is_bf16() -> None:
    """bf16's range does not fit into float16, in which numpy would compare."""
    found = [np.array([1.0, 65504.0], np.float16)]
    arrays, count = leave_out_beyond(found, found, NumberTypes(BF16))
    assert count == 0
    assert np.array_equal(arrays[0], found[0])


@pytest.mark.parametrize(
    "name",
    [
        "linear Q8_0 any block x121",
        "rms_norm values of 1e+15",
        "linear F16 scales 1 1e+30 x7",
        "linear F16 scales 0.0001 1e+20 x7",
    ],
)
def test_cases_with_values_that_a_type_cannot_hold_are_left_out(name: str) -> None:
    (case,) = (case for case in CASES if str(case) == name)
    assert [is_within_types(case, open_narrow(dtype)) for dtype in (F32, BF16, F16)] == [True, True, False]


def test_rows_count_the_results_that_were_not_compared() -> None:
    (case,) = (case for case in CASES if str(case) == "linear F16 scales 10000 1 x121")
    backend = open_narrow(F16)
    row = check_case("narrow", case, backend, backend._reference)
    assert row["state"] == "equal"
    assert row["beyond_type"] > 0
    assert "beyond_type" not in check_case("wide", case, backend._reference, backend._reference)


def test_sums_in_a_narrow_type_have_more_tolerance() -> None:
    assert NumberTypes(F16, F16).tolerance == NumberTypes(F16).tolerance
    assert NumberTypes(F16, F16, 4).tolerance == 4 * 2.0**-11


def test_cases_that_are_not_run_have_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a report counts every case."""
    cases = [next(case for case in CASES if words in str(case)) for words in ("any block", "add")]
    monkeypatch.setattr(check, "sample_cases", lambda: cases)
    narrow: Any = open_narrow(F16)
    monkeypatch.setattr(check, "open_backend", lambda name, **options: narrow if name == "cpu" else narrow._reference)
    rows = check_backends("cpu")
    assert [row["case"] for row in rows] == [*map(str, cases)]
    assert [row["state"] for row in rows] == [OUT_OF_RANGE, "equal"]
    assert count_out_of_range(rows) == 1
    assert not any(map(is_failure, rows))
