"""Random blocks against ggml's own quantizers, where TEST_GGML_BASE names a `libggml-base` built for plain x86-64.

The goldens are of one set of values; here rows, sizes and importance are drawn again for each seed, and the native
kernels are asked too.
"""

import ctypes
import os
from typing import Any

import numpy as np
import pytest

from data.make_quant_goldens import quantized
from quant_inputs import Source
from sporelm import ops
from sporelm.backends.cpu import CpuBackend
from sporelm.quant import FORMATS, quantize_tensor

LIBRARY = os.environ.get("TEST_GGML_BASE", "")
NAMES = sorted(
    name
    for name, form in FORMATS.items()
    if form.can_quantize and form.ggml_id >= 2 and name not in ("F64", "Q8_1", "Q8_K", "NVFP4", "Q1_0", "Q2_0")
)
pytestmark = pytest.mark.skipif(not LIBRARY, reason="TEST_GGML_BASE names no libggml-base")


@pytest.fixture(scope="module")
def ggml() -> Any:
    library = ctypes.CDLL(LIBRARY)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library


@pytest.fixture(scope="module")
def cpu() -> Any:
    backend = CpuBackend(threads=2)
    yield backend
    backend.close()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", NAMES)
def test_random_blocks_are_those_of_ggml(ggml: Any, cpu: CpuBackend, name: str, seed: int) -> None:
    source, form = Source(seed), FORMATS[name]
    rows, width = int(source.integers(1, 50, 1)[0]), 256 * int(source.integers(1, 9, 1)[0])
    x = source.gaussian(rows, width) + source.integers(-2, 3, rows, 1).astype(np.float32) / 2
    x = np.ldexp(x, source.integers(-12, 6, rows, 1).astype(np.int32)).astype(np.float32)
    x[source.integers(0, 5, rows, width) == 0] = 0
    importance = source.gaussian(width) ** 2 * np.exp2(source.integers(-20, 8, width)).astype(np.float32)
    for columns in (None, importance.astype(np.float32)):
        expected = quantized(ggml, form, x, columns)
        assert np.array_equal(quantize_tensor(form, x, columns), expected)
        given = [cpu.tensor(array) for array in (x, columns) if array is not None]
        native = ops.quantize_blocks(*given, format=name).numpy()
        assert np.array_equal(native.reshape(expected.shape), expected)
