"""`spore doctor --conformance` runs every op on a user's machine and detects a wrong result."""

from typing import Any

import numpy as np
import pytest

from cpu_targets import TARGETS
from sporelm import ops
from sporelm.backends.cpu.lowering.block_conversion import DEQUANTIZED_FORMATS, QUANTIZED_FORMATS
from sporelm.backends.cpu.lowering.op_lowering import op_lowerings
from sporelm.backends.reference import ReferenceBackend
from sporelm.evals.conformance.all_cases import CASES, common_cases, sample_cases
from sporelm.evals.conformance.block_conversion import CONVERTED
from sporelm.evals.conformance.check import check_case, largest_error
from sporelm.evals.conformance.conformance_case import Case
from sporelm.evals.conformance.random_weights import FORMS
from sporelm.ops import Op
from sporelm.ops.number_types import NumberTypes
from sporelm.tensor.dtype import BF16, F32
from sporelm.tensor.tensor import Tensor


def test_the_sample_is_short_and_has_every_op() -> None:
    sample = sample_cases()
    assert {case.op for case in sample} == ops.ALL.keys()
    assert {id(case) for case in sample} <= {id(case) for case in common_cases()}
    assert len(sample) < 600 < len(CASES)


@pytest.mark.parametrize("op", ["linear", "embedding"])
def test_the_sample_has_every_format_of_common_cases(op: str) -> None:
    names = {case.name.split()[0] for case in sample_cases() if case.op == op}
    assert names >= {case.name.split()[0] for case in common_cases() if case.op == op} & {form.name for form in FORMS}


def test_the_converted_formats_are_those_of_the_cpu() -> None:
    assert set(CONVERTED) == QUANTIZED_FORMATS == DEQUANTIZED_FORMATS


def first_of_each_op() -> list[Case]:
    return list({case.op: case for case in reversed(sample_cases())}.values())


@pytest.mark.parametrize("case", first_of_each_op(), ids=str)
def test_the_cpu_conforms(open_cpus: Any, reference: ReferenceBackend, case: Case) -> None:
    """With times; test_ops runs every case."""
    row = check_case("cpu", case, open_cpus(TARGETS[0]), reference, timed=True)
    assert row["state"] == "equal", row
    assert row["kernel"] == ("own" if case.op in op_lowerings() else "reference")
    assert row["seconds"] > 0
    assert row["reference_seconds"] > 0


class Wrong(ReferenceBackend):
    """Every float that comes out of an op is a little off, and every id; what is stored is off too."""

    def run(self, op: Op, args: Any, options: Any) -> Any:
        results = super().run(op, args, options)
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, Tensor) and isinstance(result.storage, np.ndarray):
                result.storage[...] = result.storage * 1.01 + 1
        return results

    def export_pages(self, cache: Tensor, pages: Any) -> np.ndarray:
        found = super().export_pages(cache, pages)
        return found ^ 4 if found.dtype == np.uint8 else found * np.float32(1.01)


@pytest.mark.parametrize("case", sample_cases(), ids=str)
def test_a_wrong_result_is_told(reference: ReferenceBackend, case: Case) -> None:
    assert check_case("wrong", case, Wrong(), reference)["state"] in ("differs", "fails")


class Rounded(ReferenceBackend):
    """A device that keeps results in bfloat16. Ids, and what decides about them, are exact."""

    def number_types(self, op: Op) -> NumberTypes:
        return NumberTypes(activation=BF16)

    def run(self, op: Op, args: Any, options: Any) -> Any:
        results = super().run(op, args, options)
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, Tensor) and result.dtype is F32 and isinstance(result.storage, np.ndarray):
                result.storage[...] = BF16.to_f32(BF16.from_f32(result.storage))
        return results


@pytest.mark.parametrize("case", first_of_each_op(), ids=str)
def test_results_of_a_narrow_type_are_compared_within_its_roundings(reference: ReferenceBackend, case: Case) -> None:
    row = check_case("rounded", case, Rounded(), reference)
    assert row["state"] == "equal", row


@pytest.mark.parametrize(
    ("found", "expected", "dtype", "limit"),
    [
        ([1, 2], [1, 2], np.int32, 0),
        ([1, 2], [1, 3], np.int32, np.inf),
        ([1, np.nan], [1, np.nan], np.float32, 0),
        ([1, np.nan], [1, 2], np.float32, np.inf),
        ([1, np.inf], [1, np.inf], np.float32, 0),
        ([1, 5], [1, np.inf], np.float32, np.inf),
        ([100, 1], [100, 1.001], np.float32, 1e-5),
    ],
)
def test_errors_are_relative_to_the_largest_value(found: Any, expected: Any, dtype: Any, limit: float) -> None:
    error = largest_error([np.array(found, dtype)], [np.array(expected, dtype)], exact=False)
    assert error == limit or 0 < error < limit < np.inf
    assert largest_error([np.zeros(2)], [np.zeros(3)], exact=False) == np.inf
