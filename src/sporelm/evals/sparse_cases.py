"""Cases of sparse attention: what writes an indexer's keys, what it chooses, and attention to that."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.protocol import Backend
from sporelm.evals.attention_cases import SLOTS
from sporelm.evals.conformance_case import ConformanceCase, random_values
from sporelm.evals.latent_cases import HEAD_DIM, HEADS, RANK, fill_latent_cache
from sporelm.ops.canonical_pages import KV_TYPES, read_canonical, to_canonical
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import ElementType

WIDTH = 40


def sparse_cases() -> Iterator[ConformanceCase]:
    """Every kind of numbers in the cache."""
    for dtype in KV_TYPES.values():
        yield ConformanceCase("store_rows", dtype.name, partial(run_store_rows, dtype=dtype))
        for k in (3, 66, 100):
            yield ConformanceCase("topk_indexer", f"{dtype.name} {k}", partial(run_topk_indexer, dtype=dtype, k=k))
        yield ConformanceCase("sparse_mla", dtype.name, partial(run_sparse_attention, dtype=dtype))


def keys(backend: Backend, dtype: ElementType) -> Any:
    """Return a cache of integers with exact sums, the largest of each block 127: every page type holds them exactly."""
    held = np.round(random_values(3, 1, 1, PAGE, WIDTH))
    held[..., ::32] = 127
    (cache,) = backend.allocate_pages(3, [(WIDTH,)], dtype)
    backend.import_pages(cache, [0, 1, 2], to_canonical(held, dtype))
    return cache


def run_store_rows(backend: Backend, *, dtype: ElementType) -> Any:
    """The whole cache."""
    cache = keys(backend, dtype)
    ops.store_rows(backend.tensor(random_values(3, WIDTH, seed=2)), cache, backend.tensor(SLOTS))
    return read_canonical(backend.export_pages(cache, [0, 1, 2]), dtype, WIDTH)


def run_topk_indexer(backend: Backend, *, dtype: ElementType, k: int) -> Any:
    """Two sequences over three pages: four rows at the end of 70 positions, one row at the end of 5."""
    tables = [np.array([0, 4, 5], np.int32), np.array([70, 5], np.int32), np.array([[2, 0], [1, 1]], np.int32)]
    rows = [backend.tensor(np.round(2 * random_values(5, width))) for width in (HEADS * WIDTH, HEADS)]
    return ops.topk_indexer(*rows, keys(backend, dtype), *map(backend.tensor, tables), k=k)


def run_sparse_attention(backend: Backend, *, dtype: ElementType) -> Any:
    """A few of the slots, in any order; one alone."""
    slots = np.array([[5, 190, 64, 0, 3], [77, -1, -1, -1, -1]], np.int32)
    rows = [backend.tensor(random_values(2, HEADS * width)) for width in (RANK, HEAD_DIM)]
    return ops.sparse_mla(*rows, fill_latent_cache(backend, dtype), backend.tensor(slots), heads=HEADS, scale=0.3)
