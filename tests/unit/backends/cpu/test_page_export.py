"""Pages in canonical form: every back-end takes any bytes of them and gives the same ones back."""

import numpy as np
import pytest

from available import BACKENDS, open_available
from sporelm import ops
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
