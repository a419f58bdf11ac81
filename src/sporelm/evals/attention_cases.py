"""Cases of attention over pages, of rotary positions, and of what writes the pages."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.protocol import Backend
from sporelm.evals.conformance_case import ConformanceCase, random_values
from sporelm.ops.canonical_pages import KV_TYPES, read_canonical, to_canonical
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import F32, ElementType
from sporelm.tensor.tensor import Tensor

HEADS = 4
KV_HEADS = 2
HEAD_DIM = 26


def attention_cases() -> Iterator[ConformanceCase]:
    """Every style of rotary positions, every kind of numbers in the cache."""
    for style in ("half", "adjacent"):
        yield ConformanceCase("rope", style, partial(rope, style=style))
        yield ConformanceCase("rope", f"{style} by streams", partial(rope, style=style, streams=(0, 1, 2) * 4 + (0,)))
    yield ConformanceCase("rope", "halves", partial(rope, style="halves", streams=(0,) * 6 + (1,) * 6))
    for dtype in KV_TYPES.values():
        yield ConformanceCase("store_kv", dtype.name, partial(store_kv, dtype=dtype))
        for style in ("half", "adjacent"):
            yield ConformanceCase("rope_store", f"{dtype.name} {style}", partial(rope_store, dtype=dtype, style=style))
        for window in (None, 9):
            yield ConformanceCase(
                "attention", f"{dtype.name} window {window}", partial(attention, dtype=dtype, window=window)
            )
    yield ConformanceCase("attention", "sinks", partial(attention, dtype=F32, window=9, numbers="sinks"))
    yield ConformanceCase("attention", "slopes", partial(attention, dtype=F32, window=None, numbers="slopes"))
    yield ConformanceCase("attention", "chunk", partial(attention, dtype=F32, window=None, chunk=23))
    yield ConformanceCase("attention", "softcap", partial(attention, dtype=F32, window=None, softcap=2.0))


def rope_table() -> np.ndarray:
    """Cosines, then sines, of 64 positions."""
    angles = np.arange(64)[:, None] / 10000 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def rope(backend: Backend, *, style: str, streams: tuple[int, ...] | None = None) -> Any:
    positions = np.array([0, 1, 63] if streams is None else [[0, 1, 2], [1, 9, 33], [63, 0, 5]], np.int32)
    x = random_values(3, HEADS * HEAD_DIM)
    table = rope_table()[:, : HEAD_DIM - HEAD_DIM % 4 * (style == "halves")]
    given = [backend.tensor(np.ascontiguousarray(array)) for array in (x, positions, table)]
    return ops.rope(*given, head_dim=HEAD_DIM, style=style, streams=streams)


def fill_cache(backend: Backend, dtype: ElementType) -> Tensor:
    """A cache of three pages full of random values."""
    (cache,) = backend.allocate_pages(3, [(KV_HEADS, HEAD_DIM)], dtype)
    backend.import_pages(cache, [0, 1, 2], to_canonical(random_values(3, 2, KV_HEADS, PAGE, HEAD_DIM), dtype))
    return cache


def read_cache(backend: Backend, cache: Tensor) -> np.ndarray:
    """The numbers in a cache."""
    return read_canonical(backend.export_pages(cache, [0, 1, 2]), cache.dtype, HEAD_DIM)


SLOTS = np.array([130, 0, 63], np.int32)  # scattered, both ends of a page among them


def store_kv(backend: Backend, *, dtype: ElementType) -> Any:
    """Three rows written; the whole cache is the result."""
    cache = fill_cache(backend, dtype)
    keys, given = (backend.tensor(random_values(3, KV_HEADS * HEAD_DIM, seed=seed)) for seed in (2, 3))
    ops.store_kv(keys, given, cache, backend.tensor(SLOTS))
    return read_cache(backend, cache)


def rope_store(backend: Backend, *, dtype: ElementType, style: str) -> Any:
    """The rotated queries, and the cache. What is rounded are keys at position 0 only, which no rounding can part."""
    cache = fill_cache(backend, dtype)
    q = backend.tensor(random_values(3, HEADS * HEAD_DIM))
    keys, given = (backend.tensor(random_values(3, KV_HEADS * HEAD_DIM, seed=seed)) for seed in (2, 3))
    where = backend.tensor(np.array([0, 1, 63] if dtype is F32 else [0, 0, 0], np.int32))
    table = backend.tensor(rope_table())
    slots = backend.tensor(SLOTS)
    turned = ops.rope_store(q, keys, given, where, table, cache, slots, head_dim=HEAD_DIM, style=style)
    return turned, read_cache(backend, cache)


def attention(
    backend: Backend,
    *,
    dtype: ElementType,
    window: int | None,
    numbers: str = "",
    softcap: float | None = None,
    chunk: int | None = None,
) -> Any:
    """Two sequences over three pages: four rows at the end of 70 positions, one row at the end of 5.

    numbers   that each head has: "sinks" or "slopes"
    """
    cache = fill_cache(backend, dtype)
    tables = [np.array([0, 4, 5], np.int32), np.array([70, 5], np.int32), np.array([[2, 0], [1, 1]], np.int32)]
    q = backend.tensor(random_values(5, HEADS * HEAD_DIM))
    given: list[Any] = [backend.tensor(array) for array in tables]
    if numbers:
        given += [None] * (numbers == "slopes") + [backend.tensor(np.abs(random_values(HEADS)) / 8)]
    return ops.attention(q, cache, *given, scale=HEAD_DIM**-0.5, window=window, softcap=softcap, chunk=chunk)
