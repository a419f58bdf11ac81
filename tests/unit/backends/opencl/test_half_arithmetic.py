"""Arithmetic in half precision: which devices use it, and that it rounds as halves do."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

import pyopencl as cl

from available import open_available
from sporelm import ops
from sporelm.backends.opencl.device_selection import OpenClDevice
from sporelm.backends.opencl.half_arithmetic import (
    KINDS,
    add_probe,
    adds_halves,
    find_half_arithmetic,
    get_half_snippet,
    probe_inputs,
)
from sporelm.backends.opencl.kernel_program import SOURCES
from sporelm.evals.conformance.conformance_case import On
from sporelm.quant import FORMATS
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F16, F32
from unit.backends.opencl.stand_in_device import stand_in

WIDTH, TOKENS = 4096, 16


def test_every_kind_has_its_file() -> None:
    assert {f"halves/{path.name}" for path in (SOURCES / "halves").iterdir()} == set(map(get_half_snippet, KINDS))


def test_emulated_arithmetic_rounds_each_operation(opencl: Any) -> None:
    assert adds_halves(opencl.compiler, opencl.queue, "emulated")
    x, weight = probe_inputs()
    expected = np.zeros(16, np.float16)
    for number, row in zip(x, weight, strict=True):
        expected = (number.astype(np.float64) * row.astype(np.float64) + expected).astype(np.float16)
    found = add_probe(opencl.compiler, opencl.queue, "emulated")
    assert found is not None
    assert np.array_equal(found, expected.astype(np.float32))


@pytest.mark.filterwarnings("ignore::pyopencl.CompilerWarning")
def test_a_device_with_fp16_has_to_get_a_sum_right(opencl: Any) -> None:
    """One without it is not asked."""
    narrow, wide = stand_in(0, "gpu", "Some", extensions=""), stand_in(0, "gpu", "Some")
    assert find_half_arithmetic(narrow, opencl.compiler, opencl.queue) is None
    source = "kernel void f(global const half *x, global const half *w, global float *y) { y[2] = 1.0f; }"
    wrong = cl.Kernel(cl.Program(opencl.cl_context, source).build(cache_dir=False), "f")
    compiler: Any = SimpleNamespace(
        context=opencl.cl_context,
        kernel=lambda program, name: wrong,
        compile_kernel=opencl.compiler.compile_kernel,
        save_binaries=opencl.compiler.save_binaries,
    )
    assert find_half_arithmetic(wide, compiler, opencl.queue) is None
    right: Any = SimpleNamespace(
        context=opencl.cl_context,
        kernel=lambda program, name: opencl.compiler.kernel(replace(program, snippets=("halves/emulated.h",)), name),
        compile_kernel=opencl.compiler.compile_kernel,
        save_binaries=opencl.compiler.save_binaries,
    )
    assert find_half_arithmetic(wide, right, opencl.queue) == "native"


def test_f32_never_computes_in_halves(opencl: Any) -> None:
    assert opencl.half_arithmetic is None
    assert opencl.number_types(ops.linear).accumulation is F32


@pytest.fixture
def narrow() -> Any:
    backend = open_available("opencl", dtype="f16")
    backend.half_arithmetic = backend.half_arithmetic or "emulated"
    backend.tuning = replace(backend.tuning, half_products=1, tile_tokens=2, tile_vectors=1)  # compiled fast
    yield backend
    backend.close()


def test_long_sums_are_added_in_float32(narrow: Any) -> None:
    """Sums of 16 products are halves, sums of these are not: a half counts in ones to 2048 only."""
    ones = np.ones((TOKENS, WIDTH), np.float32)
    blocks = np.ones((16, WIDTH), np.float16).view(np.uint8)
    weight = narrow.pack(StoredTensor("ones", FORMATS["F16"], (16, WIDTH), blocks))
    assert (ops.linear(narrow.tensor(ones), weight).numpy() == WIDTH).all()


def test_sums_beyond_the_range_of_halves_are_added_in_float32(narrow: Any) -> None:
    """1000 times 1000 is beyond it. The signs alternate, so that the result is not."""
    x = np.full((TOKENS, 33), 1000, np.float32)
    signs = np.where(np.arange(33) % 2, -1000, 1000)
    blocks = np.tile(signs, (16, 1)).astype(np.float16).view(np.uint8)
    weight = narrow.pack(StoredTensor("signs", FORMATS["F16"], (16, 33), blocks))
    bias = narrow.tensor(np.full(16, -1e6, np.float32))
    assert (ops.linear(narrow.tensor(x), weight, bias).numpy() == 0).all()


def test_sums_in_half_precision_are_used_and_can_be_switched_off(narrow: Any) -> None:
    assert narrow.number_types(ops.linear).accumulation is F16
    on = On(narrow, "switch")
    x, weight = narrow.tensor(on.values(TOKENS, WIDTH)), on.weight("F16", 16, WIDTH)
    in_half = ops.linear(x, weight).numpy()
    narrow.tuning = replace(narrow.tuning, half_products=0)
    assert narrow.number_types(ops.linear).accumulation is F32
    in_float = ops.linear(x, weight).numpy()
    assert not np.array_equal(in_half, in_float)
    assert np.abs(in_half - in_float).max() <= 3 * 2.0**-11 * np.abs(in_float).max()


def test_doctor_says_where_halves_are_computed(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenClDevice, "has_fp16", False)
    assert opencl.probe().details["fp16"] == "storage only: computed in f32"
    monkeypatch.setattr(OpenClDevice, "has_fp16", True)
    assert opencl.probe().details["fp16"] == "available with the option dtype f16"
    opencl.half_arithmetic = "native"
    assert opencl.probe().details["fp16"] == "used for the products of prefill"
