"""Pages in canonical form: every back-end takes any bytes of them and gives the same ones back."""

from typing import Any

import numpy as np
import pytest

from available import BACKENDS, open_available
from sporelm import ops
from sporelm.backends.cpu import CpuBackend
from sporelm.ops.canonical_pages import KV_TYPES, canonical_shape, read_canonical, to_canonical
from sporelm.ops.paged_attention import PAGE, page_shape
from sporelm.quant import Q8_0, quantize_tensor

SHAPES = [(2, 64), (3, 26), (1, 80), (576,), (27,)]  # kv heads, head_dim; or the width of latent rows


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_pages_go_out_as_they_came_in(name: str, kv: str, heads: tuple[int, ...]) -> None:
    """Also the padding of the last block, and whatever bits a scale has."""
    backend, dtype = open_available(name), KV_TYPES[kv]
    caches = backend.allocate_pages(5, [heads, heads], dtype)
    shape = canonical_shape((3, *page_shape(heads)), dtype)
    element = np.uint8 if kv == "q8_0" else dtype.numpy
    size = np.dtype(element).itemsize
    given = np.random.default_rng(3).integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8).view(element)
    for cache in caches:
        backend.import_pages(cache, [4, 0, 2], given)
    for cache in caches:
        found = backend.export_pages(cache, [2, 4, 0])
        assert found.shape == shape
        assert found.dtype == element
        assert found.tobytes() == given[[2, 0, 1]].tobytes()
        assert backend.export_pages(cache, [1, 3]).any() == 0
        assert backend.export_pages(cache, []).shape == (0, *shape[1:])
    backend.free_pages(caches)
    backend.close()


def open_named(name: str) -> Any:
    """Open a back-end, or the CPU with the kernels that any CPU runs."""
    return CpuBackend(threads=1, target="generic") if name == "generic" else open_available(name)


@pytest.mark.parametrize("name", BACKENDS)
def test_blocks_take_half_of_what_halves_take(name: str) -> None:
    backend = open_available(name)
    sizes = [backend.page_bytes((3, 64), KV_TYPES[kv]) for kv in ("f16", "q8_0")]
    assert sizes == [2 * 3 * PAGE * 64 * 2, 2 * 3 * PAGE * 2 * 34]
    backend.close()


def hard_rows() -> np.ndarray:
    """Keys of two blocks: ties, zeros, what is nearly zero, what no f16 scale holds, and ordinary ones."""
    rows = np.random.default_rng(1).standard_normal((9, 64), np.float32)
    rows[0] = 0
    rows[1, :32] = np.arange(-16, 16, dtype=np.float32) + 0.5
    rows[1, 0] = 127  # the scale is 1: halves are ties
    rows[2] *= 1e-38
    rows[3] *= 1e-42
    rows[4] *= 1e6
    rows[5, 40] = 65504 * 127
    rows[6, 3] = np.nan
    rows[7, 9] = np.inf
    return rows


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_are_rounded_as_blocks_of_files_are(name: str) -> None:
    backend, rows = open_available(name), hard_rows()
    (cache,) = backend.allocate_pages(1, [(1, 64)], Q8_0)
    slots = np.arange(len(rows), dtype=np.int32)
    keys, values = backend.tensor(rows), backend.tensor(rows[::-1].copy())
    ops.store_kv(keys, values, cache, backend.tensor(slots))
    found = backend.export_pages(cache, [0])[0, :, 0, : len(rows)]
    for half, given in zip(found, (rows, rows[::-1]), strict=True):
        finite = np.isfinite(given).all(axis=1)
        assert half[finite].tobytes() == quantize_tensor(Q8_0, given[finite]).tobytes()
        told = read_canonical(half, Q8_0, 64)
        assert np.isnan(told[~finite]).any(axis=1).all(), "NaN is not hidden"
    backend.free_pages([cache])
    backend.close()


def test_canonical_blocks_of_a_head_with_a_partial_block_end_with_zeros() -> None:
    values = np.random.default_rng(2).standard_normal((1, 2, 1, PAGE, 26), np.float32)
    blocks = to_canonical(values, Q8_0)
    assert blocks.shape == (1, 2, 1, PAGE, 34)
    assert not blocks[..., 2 + 26 :].any()
    assert np.abs(read_canonical(blocks, Q8_0, 26) - values).max() < np.abs(values).max() / 127


@pytest.mark.parametrize("name", [*BACKENDS, "generic"])
@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_numbers_of_any_bits_are_rounded_as_the_type_defines(name: str, kv: str) -> None:
    """Of every kind: random bits, subnormal numbers, infinities, NaN, ties and what exceeds fp8."""
    backend, dtype = open_named(name), KV_TYPES[kv]
    bits = np.random.default_rng(5).integers(0, 1 << 32, (64, 40 * 16), np.uint64).astype(np.uint32)
    rows = bits.view(np.float32).copy()
    rows[:16] = np.ldexp(np.random.default_rng(6).uniform(-2, 2, (16, rows.shape[1])), np.arange(16)[:, None] - 8)
    rows[16, :8] = 464, -464, 448, 3e38, np.inf, -np.inf, np.nan, -np.nan
    rows[17] = np.arange(rows.shape[1]) * 2.0**-11
    (cache,) = backend.allocate_pages(1, [(16, 40)], dtype)
    keys, values = backend.tensor(rows), backend.tensor(rows[::-1].copy())
    ops.store_kv(keys, values, cache, backend.tensor(np.arange(64, dtype=np.int32)))
    found = backend.export_pages(cache, [0])[0].swapaxes(1, 2).reshape(2, 64, -1)
    for half, given in zip(found, (rows, rows[::-1]), strict=True):
        expected = to_canonical(given, dtype)
        is_nan = np.isnan(given)
        assert np.array_equal(half[~is_nan], expected[~is_nan])
        assert np.isnan(read_canonical(half[is_nan], dtype, 1)).all()
    backend.free_pages([cache])
    backend.close()


@pytest.mark.parametrize("name", [*BACKENDS, "generic"])
@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_every_code_is_read_as_its_number(name: str, kv: str) -> None:
    """Attention to one position returns its values."""
    backend, dtype = open_named(name), KV_TYPES[kv]
    codes = np.arange(1 << 16).astype(dtype.numpy).reshape(64, 16, 64)  # one position in each of 64 pages
    numbers = read_canonical(codes, dtype, 64)
    pages = np.zeros((64, 2, 16, PAGE, 64), dtype.numpy)
    pages[:, 1, :, 0] = codes
    (cache,) = backend.allocate_pages(64, [(16, 64)], dtype)
    backend.import_pages(cache, range(64), pages)
    q = backend.tensor(np.ones((64, 16 * 64), np.float32))
    arrays = (np.arange(65), np.ones(64), np.arange(64)[:, None])
    found = ops.attention(q, cache, *(backend.tensor(array.astype(np.int32)) for array in arrays), scale=1.0).numpy()
    finite = np.isfinite(numbers).reshape(64, -1)
    assert np.array_equal(found[finite], numbers.reshape(64, -1)[finite])
    assert np.isnan(found[np.isnan(numbers).reshape(64, -1)]).all()
    backend.free_pages([cache])
    backend.close()
