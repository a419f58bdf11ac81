"""Planes of weights: their bytes, and that kernels unpack from them the bits that the formats dequantize to."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from sporelm import ops
from sporelm.backends.opencl.weight_formats import PLANE_ALIGNMENT, WEIGHT_FORMATS, find_weight_format
from sporelm.evals.conformance.conformance_case import On
from sporelm.evals.conformance.random_weights import blocks_of
from sporelm.quant import FORMATS, dequantize_tensor
from sporelm.quant.stored_tensor import StoredTensor

QUANTIZED = [name for name, kind in WEIGHT_FORMATS.items() if kind.split is not None]


@pytest.mark.parametrize("name", QUANTIZED)
def test_planes_are_about_as_large_as_the_files_blocks(name: str) -> None:
    shape = (64, 1024)
    nbytes = FORMATS[name].nbytes * 64 * 1024 // FORMATS[name].values
    assert nbytes <= find_weight_format(name).nbytes(shape) <= 1.03 * nbytes + 4 * PLANE_ALIGNMENT
    assert all(offset % PLANE_ALIGNMENT == 0 for offset in find_weight_format(name).plane_offsets(shape))


def test_a_format_without_planes_is_widened() -> None:
    assert find_weight_format("IQ4_XS").name == "F32"
    assert find_weight_format("IQ4_XS").nbytes((3, 256)) == 3 * 256 * 4


def test_rows_of_plain_numbers_are_filled_to_whole_runs() -> None:
    assert find_weight_format("F16").nbytes((3, 33)) == 3 * 64 * 2


def test_a_weight_is_read_as_it_was_packed(opencl: Any) -> None:
    """Its scales are halves or floats; the device's tuning may be another by the time it is read."""
    wide = bool(opencl.tuning.wide_scales)
    on = On(opencl, "scales")
    weight, ids = on.weight("Q4_1", 5, 64), opencl.tensor(np.arange(5, dtype=np.int32))
    x, expected = opencl.tensor(on.values(2, 64)), ops.embedding(ids, weight).numpy()
    product = ops.linear(x, weight).numpy()
    opencl.tuning = replace(opencl.tuning, wide_scales=int(not wide))
    assert np.array_equal(ops.embedding(ids, weight).numpy(), expected)
    assert np.array_equal(ops.linear(x, weight).numpy(), product)


@pytest.mark.parametrize("name", [*WEIGHT_FORMATS, "IQ4_NL"])
def test_every_row_is_unpacked_bit_for_bit(opencl: Any, name: str) -> None:
    form, rows = FORMATS[name], 5
    width = max(form.values, 32) * 2
    blocks = blocks_of(form, np.random.default_rng(0).standard_normal((rows, width), np.float32))
    weight = opencl.pack(StoredTensor("table", form, (rows, width), blocks))
    found = ops.embedding(opencl.tensor(np.arange(rows, dtype=np.int32)), weight).numpy()
    assert np.array_equal(found, dequantize_tensor(form, blocks, (rows, width)), equal_nan=True)
