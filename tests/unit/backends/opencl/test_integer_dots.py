"""Products of integers with rows rounded to int8: each kind against the reference, and the choice of a kind."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

import pyopencl as cl

from sporelm import ops
from sporelm.backends.opencl import integer_dots
from sporelm.backends.opencl.device_tuning import GPU_DEFAULTS
from sporelm.backends.opencl.integer_dots import DOT_EXTENSION, DOT_FORMATS, MAX_RUNS, choose_dot_kind, passes_self_test
from sporelm.backends.opencl.kernel_program import SOURCES
from sporelm.backends.opencl.weight_formats import OVERREAD_BYTES, find_weight_format
from sporelm.evals.conformance.conformance_case import On
from unit.backends.opencl.stand_in_device import stand_in

KINDS = ("packed", "emulated", "x86", None)
LACKS = {"packed": DOT_EXTENSION, "x86": "built-in functions for AVX2 or AVX-512"}
# PoCL takes seconds to compile the groups of a GPU.
PROGRAMS = [("cpu", name) for name in sorted(DOT_FORMATS)]
PROGRAMS += [pytest.param("gpu", name, marks=pytest.mark.all) for name in sorted(DOT_FORMATS)]
ROWS = 21  # not a multiple of the rows that are multiplied at once


@pytest.fixture(params=KINDS, ids=str)
def dots(request: pytest.FixtureRequest, opencl: Any) -> Any:
    """The back-end with each kind of products, where the driver has it."""
    if request.param in LACKS and not passes_self_test(request.param, opencl.compiler, opencl.queue):
        pytest.skip(f"the driver has no {LACKS[request.param]}")
    opencl.dot_kind = request.param
    return opencl


@pytest.mark.parametrize(("groups", "name"), PROGRAMS)
@pytest.mark.parametrize("runs", [1, 6, 16])
def test_products_agree_with_the_reference(dots: Any, reference: Any, name: str, runs: int, groups: str) -> None:
    """One token and several; rows whose runs are not a multiple of the runs that are multiplied at once."""
    if groups == "gpu":
        dots.tuning = GPU_DEFAULTS
    width = max(runs * 32 // 256, 1) * 256 if name.endswith("_K") else runs * 32
    results = []
    for backend in (dots, reference):
        on = On(backend, f"dots {name} {runs}")
        weight, gate = on.weight(name, ROWS, width), on.weight(name, ROWS, width)
        rows = [ops.quantize_rows(backend.tensor(on.values(n, width)), activation=on.activation(name)) for n in (1, 3)]
        found = [ops.linear(each, weight).numpy() for each in rows]
        results.append([*found, ops.linear_silu_mul(rows[1], weight, gate).numpy()])
    for found, expected in zip(*results, strict=True):
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_loads_beyond_the_last_run_stay_within_the_buffer(dots: Any, reference: Any) -> None:
    """The smallest weight whose last loads reach beyond its planes: 2 x 32 numbers of Q8_0."""
    last_run, load = 1, 2 * 16 * MAX_RUNS  # load_bytes of kernels/dots/x86.h
    for is_wide in (False, True):
        nbytes = find_weight_format("Q8_0", is_wide=is_wide).nbytes((2, 32))
        assert last_run * 32 + load <= nbytes + OVERREAD_BYTES
    results = []
    for backend in (dots, reference):
        on = On(backend, "small")
        weight = on.weight("Q8_0", 2, 32)
        results.append(ops.linear(backend.tensor(on.values(3, 32)), weight).numpy())
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


def test_a_group_that_is_not_a_number_spoils_only_its_token(dots: Any) -> None:
    """Also where the last runs of a token are read together with those of the next one."""
    on = On(dots, "not a number")
    weight, x = on.weight("Q4_1", ROWS, 6 * 32), on.values(3, 6 * 32)
    x[1, 5] = np.nan
    found = ops.linear(dots.tensor(x), weight).numpy()
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False]
    assert np.isfinite(found[[0, 2]]).all()


def test_a_device_without_the_instructions_multiplies_floats(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(0, "gpu", "Some")
    assert choose_dot_kind(gpu, opencl.compiler, opencl.queue) is None
    extended = stand_in(0, "gpu", "Some", extensions=f"cl_khr_fp16 {DOT_EXTENSION}")
    if DOT_EXTENSION not in opencl.device.device.extensions:
        assert choose_dot_kind(extended, opencl.compiler, opencl.queue) is None, (
            "the compiler does not know its functions"
        )
    monkeypatch.setattr(integer_dots, "passes_self_test", lambda kind, compiler, queue: True)
    assert choose_dot_kind(extended, opencl.compiler, opencl.queue) == "packed"


@pytest.mark.filterwarnings("ignore::pyopencl.CompilerWarning")
def test_wrong_products_are_detected(opencl: Any) -> None:
    source = "kernel void f(global const uchar *w, global const uchar *x, global float *y) { y[2] = 1.0f; }"
    wrong = cl.Kernel(cl.Program(opencl.cl_context, source).build(cache_dir=False), "f")
    compiler: Any = SimpleNamespace(
        context=opencl.compiler.context,
        kernel=lambda program, name: wrong,
        compile_kernel=opencl.compiler.compile_kernel,
        save_binaries=opencl.compiler.save_binaries,
    )
    assert passes_self_test("emulated", opencl.compiler, opencl.queue)
    assert not passes_self_test("emulated", compiler, opencl.queue)


def test_every_format_has_its_file() -> None:
    assert {path.stem.upper() for path in (SOURCES / "dots").glob("q*.h")} == DOT_FORMATS
