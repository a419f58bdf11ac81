"""Compares the results of a back-end's ops with those of their numpy references, and times them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.backend_registry import HOST_BACKENDS, all_backends, open_backend
from sporelm.backends.protocol import Backend, Missing
from sporelm.errors import BackendError, UnsupportedOp
from sporelm.evals.conformance.all_cases import CASES, sample_cases
from sporelm.evals.conformance.conformance_case import Arrays, Case
from sporelm.ops.number_types import NumberTypes
from sporelm.tensor.dtype import BF16, F16, F32, DType

HOST_DEVICE = "cpu"
OUT_OF_RANGE = "out of range"  # the state of a case whose weights or inputs do not fit the back-end's data type
# The least number that a narrow type holds with all of its bits, and its greatest finite one.
RANGES = {F16: (2.0**-14, 65504.0), BF16: (2.0**-126, 3.3895313892515355e38)}
# Cases with weights that a 16-bit type cannot hold: infinite or NaN in F16, subnormal in BF16.
BEYOND_NARROW_TYPES = ("blocks of 0xff", "least scales")
# Weights with random scales, some beyond 65504; and inputs beyond it, which would all be infinite.
BEYOND_F16 = ("any block", "values of 1e+15", "scales 1 1e+30", "scales 0.0001 1e+20")


def check_backends(
    only: str | None = None, options: Mapping[str, str] | None = None, *, every_case: bool = False
) -> list[dict[str, Any]]:
    """Run cases on each back-end that can run here; return a row per case, also of skipped ones.

    only        the only back-end to check
    options     `device` and `dtype` of back-ends that have them
    every_case  run all cases, without times, instead of a sample

    Raises BackendError if the only back-end cannot run or lacks an option, or none can run on the device.
    """
    reference = open_backend("reference")
    cases = CASES if every_case else sample_cases()
    rows = []
    if only:
        if only in HOST_BACKENDS:
            _check_host_options(only, options or {})
        given = {} if only in HOST_BACKENDS else dict(options or {})
        found: dict[str, Backend | Missing] = {only: open_backend(only, **given)}
    else:
        found = all_backends(options)
        _check_device(found, (options or {}).get("device", HOST_DEVICE))
    for name, backend in found.items():
        if isinstance(backend, Missing) or (name == "reference" and not only):
            continue
        try:
            rows += [
                check_case(name, case, backend, reference, timed=not every_case)
                if is_within_types(case, backend)
                else {"backend": name, "case": str(case), "kernel": "none", "state": OUT_OF_RANGE, "error": ""}
                for case in cases
            ]
        finally:
            backend.close()
    return rows


def is_within_types(case: Case, backend: Backend) -> bool:
    """Return whether the number type of a back-end's results can hold the weights and inputs of a case."""
    activation = backend.number_types(ops.ALL[case.op]).activation
    if activation is F32:
        return True
    beyond = BEYOND_NARROW_TYPES + (BEYOND_F16 if activation is F16 else ())
    return not any(words in str(case) for words in beyond)


def _check_host_options(name: str, options: Mapping[str, str]) -> None:
    """Raise BackendError for a device or number type that a back-end of the host does not have."""
    allowed = {"device": (HOST_DEVICE,), "dtype": ("auto", "f32")}
    for option, value in options.items():
        if value not in allowed[option]:
            raise BackendError(
                f"back-end {name!r}: no such {option} (got {value!r}; allowed {', '.join(allowed[option])}). Leave out"
                f" --{option}."
            )


def _check_device(found: Mapping[str, Backend | Missing], device: str) -> None:
    """Raise BackendError if no back-end runs on a device other than the host: nothing would be checked there."""
    others = {name: state for name, state in found.items() if name not in HOST_BACKENDS}
    reasons = [f"{name}: {state.reason}" for name, state in others.items() if isinstance(state, Missing)]
    if device != HOST_DEVICE and len(reasons) == len(others):
        for backend in found.values():
            if not isinstance(backend, Missing):
                backend.close()
        raise BackendError(f"no back-end can run on device {device!r} ({'; '.join(reasons)})")


def check_case(name: str, case: Case, backend: Backend, reference: Backend, *, timed: bool = False) -> dict[str, Any]:
    """Run a case on a back-end and on the reference.

    Return back-end, case, state (equal, differs, fails; unsupported: it lacks a kernel, and the reference cannot run
    the op instead), error, and whether a kernel or the reference ran it; with `timed` also the seconds of a second run
    on both. beyond_type is the number of results that a narrow number type cannot hold, which are not compared.
    """
    types = backend.number_types(ops.ALL[case.op])
    kernel = "reference" if case.op in backend.missing_kernels() else "own"
    row: dict[str, Any] = {"backend": name, "case": str(case), "kernel": kernel}
    expected = case.run(reference, types.activation)
    try:
        found = case.run(backend, types.activation)
        if timed:
            row |= {
                "seconds": time_ops(case, backend, types.activation),
                "reference_seconds": time_ops(case, reference, types.activation),
            }
    except UnsupportedOp as error:
        return row | {"state": "unsupported", "error": " ".join(str(error).split())}
    except Exception as error:  # the row reports any error of a third-party back-end
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return row | {"state": "fails", "error": message}
    if types.activation is not F32:
        found, num_beyond = leave_out_beyond(found, expected, types)
        row |= {"beyond_type": num_beyond} if num_beyond else {}
    error_share = largest_error(found, expected, exact=case.exact and types.activation is F32)
    state = "equal" if error_share <= types.tolerance else "differs"
    return row | {"state": state, "error": f"{error_share:.1e}"}


def leave_out_beyond(found: Arrays, expected: Arrays, types: NumberTypes) -> tuple[list[np.ndarray], int]:
    """Return the results with the expected values where a narrow type cannot hold these, and how many: values beyond
    its range, and arrays without a value that it holds with all of its bits."""
    low, high = RANGES[types.activation]
    arrays, count = [], 0
    for actual, wanted in zip(found, expected, strict=True):
        if wanted.dtype.kind == "f" and actual.shape == wanted.shape:
            size = np.abs(wanted, dtype=np.float32)  # pages may hold halves: bf16's range is beyond theirs
            beyond = np.isfinite(wanted) & (size > high * (1 - types.tolerance))
            if not (size >= low).any():
                beyond |= (size < low) & (size > 0)
            count += int(beyond.sum())
            actual = np.where(beyond, wanted, actual)
        arrays.append(actual)
    return arrays, count


def is_failure(row: Mapping[str, Any]) -> bool:
    """Return whether a compared case disagrees with the reference."""
    return row["state"] != "equal" and is_compared(row)


def is_compared(row: Mapping[str, Any]) -> bool:
    """Return whether a case was compared: it is supported, and its values fit the back-end's data type."""
    return row["state"] not in ("unsupported", OUT_OF_RANGE)


def count_out_of_range(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of cases skipped because their values do not fit the data type."""
    return sum(row["state"] == OUT_OF_RANGE for row in rows)


def count_unsupported(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of unsupported cases by op, for the ops that have some."""
    return dict(Counter(row["case"].partition(" ")[0] for row in rows if row["state"] == "unsupported"))


def time_ops(case: Case, backend: Backend, inputs: DType) -> float:
    """Return the seconds that the ops of a case take, each by itself, with its compilation done before."""
    inner, seconds = backend.run, 0.0

    def run(op: ops.Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        nonlocal seconds
        began = perf_counter()
        results = inner(op, args, options)
        backend.synchronize()
        seconds += perf_counter() - began
        return results

    vars(backend)["run"] = run
    try:
        case.run(backend, inputs)
    finally:
        del vars(backend)["run"]
    return seconds


def largest_error(found: Arrays, expected: Arrays, *, exact: bool) -> float:
    """Return the largest difference relative to the largest expected value, and, for values beyond it, to the value.

    Infinite for another shape, for integers that differ, for infinities and NaN at other places, and if `exact` for any
    difference.
    """
    if len(found) != len(expected):
        return float("inf")
    return max((_array_error(*pair, exact=exact) for pair in zip(found, expected, strict=True)), default=0.0)


def _array_error(found: np.ndarray, expected: np.ndarray, *, exact: bool) -> float:
    if found.shape != expected.shape:
        return float("inf")
    is_float = expected.dtype.kind == "f"
    if exact or not is_float:
        return 0.0 if np.array_equal(found, expected, equal_nan=is_float) else float("inf")
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite], dtype=np.float64).max(initial=0)) or 1.0
    left, right = (array.astype(np.float64) / scale for array in (found, expected))
    with np.errstate(invalid="ignore"):
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        share = np.abs(left - right) / (1 + (np.abs(left) + np.abs(right)) / 2)
    return float(np.where(same, 0, np.nan_to_num(share, nan=np.inf)).max(initial=0))
