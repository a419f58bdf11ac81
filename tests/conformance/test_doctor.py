"""`spore doctor --conformance` runs every op on a user's machine and detects a wrong result."""

from typing import Any

import numpy as np
import pytest

from cpu_targets import TARGETS
from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.evals.conformance import cases, check
from sporelm.evals.conformance_case import ConformanceCase
from sporelm.ops import Op
from sporelm.tensor.tensor import Tensor


def test_every_op_is_run() -> None:
    assert {case.op for case in cases()} == ops.ALL.keys()


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)


ON_TARGETS = [  # test_ops goes further on every target; what is new here is the best one, as on a user's machine
    pytest.param(target, case, id=f"{target}-{case.name}", marks=[pytest.mark.all] if target != TARGETS[0] else [])
    for target in TARGETS
    for case in cases()
]


@pytest.mark.parametrize(("opened_cpu", "case"), ON_TARGETS, indirect=["opened_cpu"])
def test_the_cpu_conforms(cpu: Any, reference: ReferenceBackend, case: ConformanceCase) -> None:
    row = check("cpu", case, cpu, reference)
    assert row["state"] == "equal", row


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


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_a_wrong_result_is_told(reference: ReferenceBackend, case: ConformanceCase) -> None:
    assert check("wrong", case, Wrong(), reference)["state"] == "differs"
