"""Cases of sparse attention: what writes an indexer's keys, what it chooses, and attention to that."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.backend import Backend
from sporelm.evals.attention_cases import SLOTS
from sporelm.evals.case import Case, values
from sporelm.evals.latent_cases import HEAD_DIM, HEADS, RANK, filled
from sporelm.ops.attention import PAGE
from sporelm.ops.cache import KV_TYPES, canonical_of, values_of
from sporelm.tensor.dtype import ElementType

WIDTH = 40


def sparse_cases() -> Iterator[Case]:
    """Every kind of numbers in the cache."""
    for dtype in KV_TYPES.values():
        yield Case("store_rows", dtype.name, partial(stored, dtype=dtype))
        for k in (3, 66, 100):
            yield Case("choose_slots", f"{dtype.name} {k}", partial(chosen, dtype=dtype, k=k))
        yield Case("chosen_attention", dtype.name, partial(attended, dtype=dtype))


def keys(backend: Backend, dtype: ElementType) -> Any:
    """Whole numbers, of which sums are exact, the greatest of each block 127: every kind of pages holds them."""
    held = np.round(values(3, 1, 1, PAGE, WIDTH))
    held[..., ::32] = 127
    (cache,) = backend.page_pool(3, [(WIDTH,)], dtype)
    backend.import_pages(cache, [0, 1, 2], canonical_of(held, dtype))
    return cache


def stored(backend: Backend, *, dtype: ElementType) -> Any:
    """The whole cache."""
    cache = keys(backend, dtype)
    ops.store_rows(backend.tensor(values(3, WIDTH, seed=2)), cache, backend.tensor(SLOTS))
    return values_of(backend.export_pages(cache, [0, 1, 2]), dtype, WIDTH)


def chosen(backend: Backend, *, dtype: ElementType, k: int) -> Any:
    """Two sequences over three pages: four rows at the end of 70 positions, one row at the end of 5."""
    tables = [np.array([0, 4, 5], np.int32), np.array([70, 5], np.int32), np.array([[2, 0], [1, 1]], np.int32)]
    rows = [backend.tensor(np.round(2 * values(5, width))) for width in (HEADS * WIDTH, HEADS)]
    return ops.choose_slots(*rows, keys(backend, dtype), *map(backend.tensor, tables), k=k)


def attended(backend: Backend, *, dtype: ElementType) -> Any:
    """A few of the slots, in any order; one alone."""
    slots = np.array([[5, 190, 64, 0, 3], [77, -1, -1, -1, -1]], np.int32)
    rows = [backend.tensor(values(2, HEADS * width)) for width in (RANK, HEAD_DIM)]
    return ops.chosen_attention(*rows, filled(backend, dtype), backend.tensor(slots), heads=HEADS, scale=0.3)
