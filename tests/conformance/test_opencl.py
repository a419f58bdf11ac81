"""OpenCL kernels against the ops' numpy references: in float32, with activations stored as halves, with sums in half
precision too, and in float32 with the vectors and groups of GPUs, and with other tunings.

They run where there is an OpenCL driver, such as PoCL for the CPU. Without cl_khr_fp16, as on PoCL, arithmetic in half
precision is emulated: each operation is rounded to half.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_close
from conformance.tiny_decoder import OUTPUTS, SEQUENCES, STEPS, TABLE, Steps, TinyDecoder, extents_of, specs
from sporelm import ops
from sporelm.errors import BackendError
from sporelm.evals.conformance.all_cases import CASES, sample_cases
from sporelm.evals.conformance.check import check_case, is_within_types
from sporelm.evals.conformance.conformance_case import Case, On
from sporelm.ops import trace
from sporelm.plan import Plan

DTYPES = ("f32", "f16")
HALVES = "f16 with sums in half precision"
GROUPS = "groups of a gpu"
NARROW, WIDE = "narrow vectors", "large groups"
TUNINGS = {  # beside the defaults: numbers that a device may be measured to be fast with
    NARROW: {"vector": 2, "tile_tokens": 6, "attention_rows": 8},
    WIDE: {"row_group": 16, "attention_rows": 2, "few_rows": 4, "dot_rows": 4},
}


def kernel_cases() -> list[Any]:
    """Return the cases of ops with kernels: by default every eighth of the sample of `spore doctor --conformance` in
    f32, fewer in others, since each shape of some ops is a program to compile; with --all all cases."""
    try:
        from sporelm.backends.opencl.op_lowering import op_lowerings
        from sporelm.backends.opencl.opencl_backend import HALF_OPS
    except BackendError:
        return [pytest.param("f32", None, id="none")]
    short = [id(case) for case in sample_cases()]
    many = [id(case) for case in sample_cases() if case.op in HALF_OPS and str(case).endswith("x121")]
    chosen = {"f32": {*short[::8]}, "f16": {*short[1::24]}, HALVES: {*many[::8]}, GROUPS: {*short[2::24]}}
    chosen |= {NARROW: {*short[3::72]}, WIDE: {*short[5::72]}}
    return [
        pytest.param(kind, case, id=f"{kind} {case}", marks=[] if id(case) in chosen[kind] else [pytest.mark.all])
        for kind in (*DTYPES, HALVES, GROUPS, *TUNINGS)
        for case in CASES
        if case.op in (HALF_OPS if kind == HALVES else op_lowerings())
    ]


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[str, Any]]:
    """The back-end with each type of activations, with and without arithmetic in half precision, and with numbers of a
    GPU."""
    opened = {dtype: open_available("opencl", dtype=dtype) for dtype in DTYPES}
    opened[HALVES], opened[GROUPS] = open_available("opencl", dtype="f16"), open_available("opencl")
    opened["f16"].half_arithmetic = None
    opened[HALVES].half_arithmetic = opened[HALVES].half_arithmetic or "emulated"
    fast_to_compile = {"tile_tokens": 3, "tile_vectors": 1}
    opened[HALVES].tuning = replace(opened[HALVES].tuning, half_products=1, **fast_to_compile)
    from sporelm.backends.opencl.device_tuning import GPU_DEFAULTS

    opened[GROUPS].tuning = GPU_DEFAULTS
    for kind, changes in TUNINGS.items():
        opened[kind] = open_available("opencl")
        opened[kind].tuning = replace(opened[kind].tuning, **changes)
    yield opened
    for backend in opened.values():
        backend.close()


@pytest.mark.parametrize(("kind", "case"), kernel_cases())
def test_kernels_agree_with_the_reference(backends: dict[str, Any], reference: Any, kind: str, case: Case) -> None:
    if not is_within_types(case, backends[kind]):
        pytest.skip("its weights or inputs are beyond the range of the type")
    row = check_case("opencl", case, backends[kind], reference)
    assert row["state"] == "equal", row


@pytest.mark.parametrize("mix", ["F32", pytest.param("Q4_K Q6_K", marks=pytest.mark.all), "Q8_0 F16"])
def test_a_planned_decoder_agrees_with_the_reference(backends: dict[str, Any], reference: Any, mix: str) -> None:
    """Each step's logits; the pages are carried over so that differences do not add up."""
    mine, theirs = (TinyDecoder(On(backend, mix), mix) for backend in (backends["f32"], reference))
    plan = Plan(trace(mine.forward, specs()), backends["f32"])
    assert plan.fallback_calls == {}
    steps, every = Steps(), range(SEQUENCES * TABLE)
    for counts, rows in STEPS:
        arrays = steps.step(counts, rows)
        found = plan.run(arrays, extents_of(arrays))["logits"]
        expected = theirs.forward(**{name: reference.tensor(array) for name, array in arrays.items()})["logits"].numpy()
        # Where int8 activations or halves in the cache are rounded, one of them may fall the other way.
        assert np.abs(found - expected).max() <= (1e-4 if mix == "F32" else 2e-2) * np.abs(expected).max()
        reference.import_pages(theirs.cache, every, backends["f32"].export_pages(mine.cache, every))
    plan.close()
    backends["f32"].free_pages([mine.cache])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_decoder_is_the_same_eager_and_planned(backends: dict[str, Any], dtype: str) -> None:
    """Bit for bit: both launch the same kernels, but fused calls round halves at fewer places."""
    backend = backends[dtype]
    eager, planned = (TinyDecoder(On(backend, "Q8_0"), "Q8_0") for _ in range(2))
    plan, steps = Plan(trace(planned.forward, specs()), backend), Steps()
    for counts, rows in STEPS:
        arrays = steps.step(counts, rows)
        found = plan.run(arrays, extents_of(arrays))
        expected = eager.forward(**{name: backend.tensor(array) for name, array in arrays.items()})
        for name in OUTPUTS:
            if dtype == "f32":
                assert np.array_equal(found[name], expected[name].numpy()), f"{name} of step {counts}"
        magnitude = np.abs(expected["logits"].numpy()).max()
        assert_close(found["logits"] / magnitude, expected["logits"].numpy() / magnitude, "bf16")
    plan.close()
    for decoder in (eager, planned):
        backend.free_pages([decoder.cache])


EDGES = np.array(
    [
        [3, 3, 1, 3, 0, 2],
        [0.0, -0.0, 0.0, -0.0, 0.0, -0.0],
        [np.nan, 1, 2, np.nan, 3, 3],
        [-np.inf, -np.inf, -np.inf, -np.inf, -np.inf, -np.inf],
        [np.inf, 1, np.inf, np.nan, -np.inf, 1],
    ],
    np.float32,
)


def test_ties_infinities_and_nan_are_picked_as_the_reference_does(backends: dict[str, Any], reference: Any) -> None:
    for op, options in ((ops.argmax, {}), *((ops.top_k, {"k": k}) for k in (1, 4, 6))):
        results = [op(backend.tensor(EDGES), **options) for backend in (backends["f32"], reference)]
        for found, expected in zip(*(each if isinstance(each, tuple) else (each,) for each in results), strict=True):
            assert np.array_equal(found.numpy(), expected.numpy(), equal_nan=found.dtype.name == "f32")


def test_values_that_are_not_numbers_spoil_only_their_group(backends: dict[str, Any], reference: Any) -> None:
    """Rows rounded to int8: a group with NaN or infinity is NaN."""
    x = np.random.default_rng(0).standard_normal((3, 512), np.float32)
    x[0, 70], x[1, 5] = np.nan, np.inf
    backend = backends["f32"]
    rows = ops.quantize_rows(backend.tensor(x), activation="int8/32").storage
    found = backend._read(rows, rows.shape)
    with np.errstate(invalid="ignore"):
        expected = ops.quantize_rows(reference.tensor(x), activation="int8/32").storage.dequantize()
    bad = np.isnan(expected).reshape(3, -1, 32).any(axis=2)
    assert np.array_equal(np.isnan(found).reshape(3, -1, 32).all(axis=2), bad)
    good = ~np.repeat(bad, 32, axis=1)
    assert np.array_equal(found[good], expected[good])
