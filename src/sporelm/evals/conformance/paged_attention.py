"""Cases of attention over pages, and of what writes the pages."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case
from sporelm.evals.conformance.rows import HEAD_DIMS, rope_table
from sporelm.ops.canonical_pages import KV_TYPES, to_canonical
from sporelm.ops.paged_attention import PAGE

PAGES, TABLE = 24, 12  # pages in the cache, columns of a page table
LENGTHS = (700, 130, 64, 1)  # several splits of 256; a page and some; a whole page; one position
WINDOWS = (None, 1, 64, 100, 300)
# rows of each sequence in the step: all decoded; prefill beside decode; a tile of 16 exactly, one more, several tiles
STEPS = ((1, 1, 1, 1), (7, 1, 2, 1), (16, 17, 64, 1), (33, 130, 1, 1), (121, 2, 33, 1))
# rows of each sequence, and the images among them: (sequence, first position, past-last position)
IMAGES = {
    "of no rows": (STEPS[2], ()),
    "in several places": (STEPS[4], ((0, 579, 600), (0, 620, 660), (0, 690, 700), (1, 128, 130), (2, 31, 64))),
    "side by side": (STEPS[3], ((0, 675, 676), (1, 0, 70), (1, 70, 130), (2, 63, 64))),
    "in short chunks": (STEPS[1], ((0, 694, 700), (2, 62, 64), (3, 0, 1))),
    "of many pages": ((600, 1, 33, 1), ((0, 110, 690),)),
}


@dataclass(frozen=True)
class Heads:
    """A shape of attention: `group` query heads for each of `kv_heads`."""

    head_dim: int
    group: int
    kv_heads: int
    kv: str

    def __str__(self) -> str:
        return f"{self.kv_heads}x{self.group} heads of {self.head_dim} {self.kv}"

    @property
    def width(self) -> int:
        return self.head_dim * self.group * self.kv_heads


# Each compiles kernels of its own, so by default a choice that covers every head size, group 1 to 9 and each kind of
# numbers; every combination with --all.
CHOSEN = (
    Heads(2, 1, 3, "f32"),
    Heads(16, 7, 1, "f16"),
    Heads(26, 3, 4, "f32"),
    Heads(64, 3, 3, "f16"),
    Heads(64, 9, 1, "f32"),
    Heads(80, 6, 2, "f16"),
    Heads(128, 4, 1, "f32"),
    Heads(128, 8, 1, "f16"),
    Heads(64, 3, 3, "q8_0"),
    Heads(26, 4, 1, "q8_0"),
    Heads(80, 7, 2, "q8_0"),
    Heads(128, 2, 1, "q8_0"),
    Heads(64, 3, 3, "bf16"),
    Heads(26, 4, 1, "bf16"),
    Heads(64, 3, 3, "fp8"),
    Heads(26, 5, 2, "fp8"),
)
COMMON = (CHOSEN[2], CHOSEN[3], CHOSEN[8])
NARROW = CHOSEN[12:]  # types that are converted by bits: on lesser targets only their first steps and stores
EVERY = tuple(Heads(d, g, 2, kv) for d in HEAD_DIMS for g in range(1, 10) for kv in KV_TYPES)


def page_tables(on: On, lengths: tuple[int, ...]) -> np.ndarray:
    """Scattered pages for each sequence, int32 [sequences, TABLE]; entries past a sequence's end name none."""
    free = iter(on.random.permutation(PAGES))
    tables = np.full((len(lengths), TABLE), 2**31 - 1, np.int32)
    for sequence, length in enumerate(lengths):
        count = -(-length // PAGE)
        tables[sequence, :count] = [next(free) for _ in range(count)]
    return tables


def filled(on: On, heads: Heads) -> Any:
    """A cache full of random values, places that no sequence holds among them."""
    dtype = KV_TYPES[heads.kv]
    cache = on.backend.allocate_pages(PAGES, [(heads.kv_heads, heads.head_dim)], dtype)[0]
    values = on.values(PAGES, 2, heads.kv_heads, PAGE, heads.head_dim)
    on.backend.import_pages(cache, range(PAGES), to_canonical(values, dtype))
    return cache


def image_spans(step: tuple[int, ...], images: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """The span of each row: that of the image that it belongs to, else (0, 0)."""
    ends = np.cumsum(step)
    spans = np.zeros((int(ends[-1]), 2), np.int32)
    for sequence, first, stop in images:
        row = ends[sequence] - LENGTHS[sequence]
        spans[row + first : row + stop] = first, stop
    return spans


def attend(
    on: On,
    heads: Heads,
    step: tuple[int, ...],
    window: int | None,
    gain: float,
    sinks: float | None = None,
    softcap: float | None = None,
    slope: float | None = None,
    chunk: int | None = None,
    images: tuple[tuple[int, int, int], ...] | None = None,
) -> Any:
    """`sinks` is about how high the scores of these are, `slope` how fast those of the last head fall; `images` are
    those of IMAGES."""
    tables = page_tables(on, LENGTHS)
    cache = filled(on, heads)
    starts = np.concatenate([[0], np.cumsum(step)])
    q = on.rows(int(starts[-1]), heads.width, scale=gain)
    given = [on.ints(starts), on.ints(LENGTHS), on.ints(tables)]
    if sinks is not None:
        given.append(on.tensor(on.values(heads.group * heads.kv_heads) + np.float32(sinks)))
    if slope is not None:
        falls = np.linspace(0, slope, heads.group * heads.kv_heads + 1, dtype=np.float32)[1:]
        given += [None] * (sinks is None) + [on.tensor(falls)]
    if images is not None:
        given += [None] * (5 - len(given)) + [on.ints(image_spans(step, images))]
    options = {"scale": heads.head_dim**-0.5, "window": window, "softcap": softcap, "chunk": chunk}
    return ops.attention(q, cache, *given, **options)


def attend_beside_nan(on: On, heads: Heads, step: tuple[int, ...]) -> Any:
    """Places past a sequence's end, and pages that no sequence holds, are NaN: they must not be seen."""
    tables = page_tables(on, LENGTHS)
    dtype = KV_TYPES[heads.kv]
    cache = on.backend.allocate_pages(PAGES, [(heads.kv_heads, heads.head_dim)], dtype)[0]
    values = on.values(PAGES, 2, heads.kv_heads, PAGE, heads.head_dim)
    owned = np.zeros((PAGES, PAGE), bool)
    for table, length in zip(tables, LENGTHS, strict=True):
        for start in range(0, length, PAGE):
            owned[table[start // PAGE], : length - start] = True
    values[~np.broadcast_to(owned[:, None, None, :, None], values.shape)] = np.nan
    on.backend.import_pages(cache, range(PAGES), to_canonical(values, dtype))
    starts = np.concatenate([[0], np.cumsum(step)])
    shared = (on.ints(starts), on.ints(LENGTHS), on.ints(tables))
    return ops.attention(on.rows(int(starts[-1]), heads.width), cache, *shared, scale=heads.head_dim**-0.5)


def stored(on: On, heads: Heads, tokens: int) -> Any:
    """store_kv to scattered slots; the whole cache is the result."""
    cache = filled(on, heads)
    slots = on.ints(on.random.permutation(PAGES * PAGE)[:tokens])
    width = heads.kv_heads * heads.head_dim
    ops.store_kv(on.rows(tokens, width), on.rows(tokens, width, scale=100.0), cache, slots)
    return on.backend.export_pages(cache, range(PAGES))


def rotated_and_stored(on: On, heads: Heads, tokens: int, rotary: int, style: str) -> Any:
    cache = filled(on, heads)
    slots = on.ints(on.random.permutation(PAGES * PAGE)[:tokens])
    positions = on.ints(np.arange(tokens) * 53 % 400)
    narrow = heads.kv_heads * heads.head_dim
    rows = (on.rows(tokens, heads.width), on.rows(tokens, narrow), on.rows(tokens, narrow))
    table = on.tensor(rope_table(400, rotary))
    rotated = ops.rope_store(*rows, positions, table, cache, slots, head_dim=heads.head_dim, style=style)
    return rotated, on.backend.export_pages(cache, range(PAGES)).astype(np.float32)


def rotated_by_streams_and_stored(on: On, heads: Heads, tokens: int) -> Any:
    """Each row has two positions, and each half of a head takes one."""
    cache, slots = filled(on, heads), on.ints(on.random.permutation(PAGES * PAGE)[:tokens])
    narrow, rotary = heads.kv_heads * heads.head_dim, heads.head_dim // 4 * 4
    rows = (on.rows(tokens, heads.width), on.rows(tokens, narrow), on.rows(tokens, narrow))
    positions, table = on.ints(np.arange(tokens)[:, None] * [53, 7] % 400), on.tensor(rope_table(400, rotary))
    how = {"head_dim": heads.head_dim, "style": "halves", "streams": (0,) * (rotary // 4) + (1,) * (rotary // 4)}
    rotated = ops.rope_store(*rows, positions, table, cache, slots, **how)
    return rotated, on.backend.export_pages(cache, range(PAGES)).astype(np.float32)


def cases() -> Iterator[Case]:
    for heads in CHOSEN:
        mark = heads in COMMON
        for step in STEPS:
            for window in WINDOWS:
                name = f"{heads} {step} window {window}"
                few = heads in NARROW and step in STEPS[:2] and window is None
                marks = {"common": mark or few, "rare": heads in NARROW and window not in (None, 100)}
                yield case("attention", name, attend, heads, step, window, 1.0, **marks)
            yield case("attention", f"{heads} {step} beside NaN", attend_beside_nan, heads, step, common=mark)
        for gain in (0.0, 8.0):
            for step in (STEPS[0], STEPS[2]):
                name = f"{heads} {step} queries of {gain:g}"
                yield case("attention", name, attend, heads, step, None, gain, common=mark)
        for tokens in (1, 7, 121):
            yield case(
                "store_kv", f"{heads} x{tokens}", stored, heads, tokens, exact=True, common=mark or heads in NARROW
            )
            for style in ("half", "adjacent"):
                for rotary in sorted({heads.head_dim, heads.head_dim // 4 * 2 or 2}):
                    name = f"{heads} {style} {rotary} x{tokens}"
                    marks = {"common": mark, "rare": heads in NARROW and style == "adjacent"}
                    yield case("rope_store", name, rotated_and_stored, heads, tokens, rotary, style, **marks)
    for heads in (*COMMON, CHOSEN[6]):
        for step in (STEPS[0], STEPS[1], STEPS[3]):
            for window in (None, 100):
                for sinks, softcap in ((0.0, None), (9.0, None), (-60.0, None), (None, 2.0), (2.0, 0.5)):
                    name = f"{heads} {step} window {window} sinks of {sinks} softcap {softcap}"
                    marks = {"common": sinks == 2.0 or (sinks == 9.0 and window is None)}
                    yield case("attention", name, attend, heads, step, window, 3.0, sinks, softcap, **marks)
            for window, sinks, slope in ((None, None, 0.5), (None, None, 1e-3), (100, 2.0, 0.03)):
                name = f"{heads} {step} window {window} sinks of {sinks} slopes to {slope}"
                marks = {"common": slope != 1e-3, "rare": heads is not COMMON[0] and slope == 1e-3}
                yield case("attention", name, attend, heads, step, window, 3.0, sinks, None, slope, **marks)
            for chunk in (3, 100, 320, 4096):
                name, marks = f"{heads} {step} chunk {chunk}", {"common": chunk in (3, 100), "rare": chunk == 4096}
                yield case("attention", name, attend, heads, step, None, 3.0, None, None, None, chunk, **marks)
        for tokens in (1, 7):
            name = f"{heads} of two positions x{tokens}"
            yield case("rope_store", name, rotated_by_streams_and_stored, heads, tokens, common=heads is COMMON[0])
    for heads in EVERY:
        for step in STEPS[:3]:
            for window in (None, 100):
                name = f"every {heads} {step} window {window}"
                yield case("attention", name, attend, heads, step, window, 1.0, rare=True)
    for heads in (CHOSEN[6], CHOSEN[12], CHOSEN[14], *COMMON):
        for kind, (step, images) in IMAGES.items():
            for window in (None, 8, 100):
                name = f"{heads} images {kind} window {window}"
                marks = {"common": heads in COMMON, "rare": heads not in COMMON and window != 100}
                yield case("attention", name, attend, heads, step, window, 1.0, None, None, None, None, images, **marks)
    for sinks, softcap in ((2.0, None), (None, 2.0), (2.0, 0.5)):
        for kind, (step, images) in IMAGES.items():
            name = f"{COMMON[0]} images {kind} sinks of {sinks} softcap {softcap}"
            marks = {"common": softcap == 2.0}
            yield case(
                "attention", name, attend, COMMON[0], step, 100, 3.0, sinks, softcap, None, None, images, **marks
            )
