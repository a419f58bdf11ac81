"""Triton kernels against the ops' numpy references: on a GPU, or under Triton's interpreter (TRITON_INTERPRET=1)."""

from collections.abc import Iterator
from typing import Any

import pytest

from available import open_available
from sporelm.errors import BackendError
from sporelm.evals.conformance.all_cases import CASES, sample_cases
from sporelm.evals.conformance.check import check_case, is_within_types
from sporelm.evals.conformance.conformance_case import Case

DTYPES = ("f32", "bf16", "f16")


def kernel_cases() -> list[Any]:
    """Return the cases of ops that have kernels: in f32 every third one of the sample of `spore doctor --conformance`,
    fewer in narrow types, since interpreted kernels are slow; with --all all cases."""
    try:
        from sporelm.backends.cuda.op_kernels import own_functions
    except BackendError:
        return [pytest.param("f32", None, id="none")]
    short = [id(case) for case in sample_cases()]
    chosen = {"f32": {*short[::3]}, "bf16": {*short[1::12]}, "f16": {*short[5::24]}}
    return [
        pytest.param(dtype, case, id=f"{dtype} {case}", marks=[] if id(case) in chosen[dtype] else [pytest.mark.all])
        for dtype in DTYPES
        for case in CASES
        if case.op in own_functions()
    ]


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[str, Any]]:
    """The back-end with each type of activations."""
    opened = {dtype: open_available("cuda", dtype=dtype) for dtype in DTYPES}
    yield opened
    for backend in opened.values():
        backend.close()


@pytest.mark.parametrize(("dtype", "case"), kernel_cases())
def test_kernels_agree_with_the_reference(backends: dict[str, Any], reference: Any, dtype: str, case: Case) -> None:
    if not is_within_types(case, backends[dtype]):
        pytest.skip("its weights or inputs are beyond the range of the type")
    row = check_case("cuda", case, backends[dtype], reference)
    assert row["state"] == "equal", row
