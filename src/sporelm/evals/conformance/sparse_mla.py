"""Cases of sparse attention: an indexer's keys written to pages, what it chooses, and attention to chosen slots."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case
from sporelm.evals.conformance.mla import CHOSEN, COMMON, Latents, filled
from sporelm.evals.conformance.paged_attention import LENGTHS, PAGES, STEPS, page_tables
from sporelm.ops.canonical_pages import KV_TYPES, to_canonical
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.topk_indexer import NO_SLOT

# heads, width of a key, how it is kept: an odd one, one in blocks, that of DeepSeek V3.2 with fewer heads
INDEXERS = ((7, 10, "f32"), (3, 40, "q8_0"), (20, 128, "f16"), (3, 24, "bf16"), (5, 9, "fp8"))
LIMITS = (1, 5, 64, 300, 1000)


def whole_keys(on: On, width: int, kv: str) -> Any:
    """A cache of whole numbers. Every kind of pages holds them exactly and sums are exact, so that the choice of keys,
    also between equal scores, is certain. There are few numbers, so that scores are equal."""
    values = on.random.integers(-2, 3, (PAGES, 1, 1, PAGE, width)).astype(np.float32)
    values[..., ::32] = 127  # the greatest of a block: its scale is 1
    dtype = KV_TYPES[kv]
    cache = on.backend.allocate_pages(PAGES, [(width,)], dtype)[0]
    on.backend.import_pages(cache, range(PAGES), to_canonical(values, dtype))
    return cache


def choose(on: On, heads: int, width: int, kv: str, step: tuple[int, ...], k: int) -> Any:
    tables, cache, starts = page_tables(on, LENGTHS), whole_keys(on, width, kv), np.cumsum([0, *step])
    rows = int(starts[-1])
    q, weights = (on.random.integers(-2, 3, (rows, each)).astype(np.float32) for each in (heads * width, heads))
    q.reshape(rows, heads, width)[..., ::32] = 0
    given = [on.tensor(q), on.tensor(weights), cache, on.ints(starts), on.ints(LENGTHS), on.ints(tables)]
    return ops.topk_indexer(*given, k=k)


def choose_among_nan(on: On, k: int) -> Any:
    """Scores that are NaN, infinite and zero, of either sign."""
    keys = np.zeros((PAGES, 1, 1, PAGE, 2), np.float32)
    keys[:, 0, 0, ::3, 0], keys[:, 0, 0, 1::5, 0], keys[:, 0, 0, 2::7, 0] = np.nan, np.inf, -3
    cache = on.backend.allocate_pages(PAGES, [(2,)], KV_TYPES["f32"])[0]
    on.backend.import_pages(cache, range(PAGES), keys)
    q, weights = np.array([[1, 0]] * 2, np.float32), np.array([[1], [-1]], np.float32)
    places = (on.ints([0, 2]), on.ints([200]), on.ints([[3, 0, 5, 1]]))
    return ops.topk_indexer(on.tensor(q), on.tensor(weights), cache, *places, k=k)


def attend(on: On, shape: Latents, rows: int, k: int, gain: float) -> Any:
    """Random slots, of the first row one; between them rows of NaN, which are not selected."""
    slots = np.full((rows, k), NO_SLOT, np.int32)
    free = on.random.permutation(PAGES * PAGE)[: PAGES * PAGE * 3 // 4]
    for row in range(rows):
        count = 1 if row == 0 else int(on.random.integers(1, k + 1))
        slots[row, :count] = on.random.choice(free, min(count, len(free)), replace=False)[:count]
    values = on.values(PAGES * PAGE, shape.width)
    values[np.setdiff1d(np.arange(PAGES * PAGE), free)] = np.nan
    cache = filled(on, shape, values.reshape(PAGES, 1, 1, PAGE, shape.width))
    queries = [on.rows(rows, shape.heads * each, scale=gain) for each in (shape.rank, shape.head_dim)]
    return ops.sparse_mla(*queries, cache, on.ints(slots), heads=shape.heads, scale=shape.width**-0.5)


def stored(on: On, width: int, kv: str, tokens: int) -> Any:
    """The whole cache."""
    cache, slots = whole_keys(on, width, kv), on.ints(on.random.permutation(PAGES * PAGE)[:tokens])
    ops.store_rows(on.rows(tokens, width), cache, slots)
    return on.backend.export_pages(cache, range(PAGES))


def cases() -> Iterator[Case]:
    for heads, width, kv in INDEXERS:
        mark = width != 128
        for tokens in (1, 33):
            yield case("store_rows", f"{width} {kv} x{tokens}", stored, width, kv, tokens, exact=True, common=mark)
        for step in STEPS:
            for k in LIMITS:
                name = f"{heads} of {width} {kv} {step} {k}"
                rare = step in STEPS[3:] or k == 300
                marks = {"common": mark and step in STEPS[:2], "rare": rare}
                yield case("topk_indexer", name, choose, heads, width, kv, step, k, exact=True, **marks)
    for k in (1, 70, 199):
        yield case("topk_indexer", f"NaN {k}", choose_among_nan, k, exact=True)
    for shape in CHOSEN:
        mark, large = shape in COMMON, shape.rank > 100
        for rows, k in ((1, 5), (7, 300), (33, 70), (17, 600)):
            for gain in (1.0, 0.0, 8.0):
                name = f"{shape} {rows} rows of {k} queries of {gain:g}"
                marks = {"common": mark and gain == 1, "rare": gain != 1 or (large and rows > 1)}
                yield case("sparse_mla", name, attend, shape, rows, k, gain, **marks)
