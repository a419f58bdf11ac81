"""Cases of latent attention: products with a matrix a head, rows written to pages, and attention over them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case, width_of
from sporelm.evals.conformance.paged_attention import LENGTHS, PAGES, STEPS, page_tables
from sporelm.evals.conformance.rows import rope_table
from sporelm.ops.canonical_pages import KV_TYPES, to_canonical
from sporelm.ops.paged_attention import PAGE
from sporelm.quant import FORMATS


@dataclass(frozen=True)
class Latents:
    """A shape of latent attention."""

    heads: int
    rank: int
    rotary: int
    head_dim: int  # of queries, the rotated part included
    kv: str

    def __str__(self) -> str:
        return f"{self.heads} heads of {self.rank}+{self.rotary} from {self.head_dim} {self.kv}"

    @property
    def width(self) -> int:
        return self.rank + self.rotary


# Odd ones, one with as many heads as two items have, and that of DeepSeek-V2-Lite.
CHOSEN = (
    Latents(7, 24, 10, 15, "f32"),
    Latents(3, 40, 4, 20, "q8_0"),
    Latents(5, 64, 32, 48, "f16"),
    Latents(70, 16, 2, 6, "f16"),
    Latents(16, 512, 64, 192, "f16"),
    Latents(16, 512, 64, 192, "q8_0"),
    Latents(5, 24, 10, 17, "bf16"),
    Latents(3, 40, 4, 20, "fp8"),
)
COMMON = CHOSEN[:3]
PRODUCTS = (
    ("F32", 7, 3, 26, 5),
    ("F16", 3, 33, 9, 9),
    ("Q8_0", 3, 20, 64, 40),
    ("Q5_0", 2, 64, 32, 32),
    ("Q4_K", 3, 33, 256, 256),
)


def filled(on: On, shape: Latents, values: np.ndarray | None = None) -> Any:
    """A cache full of random values."""
    dtype = KV_TYPES[shape.kv]
    cache = on.backend.allocate_pages(PAGES, [(shape.width,)], dtype)[0]
    given = on.values(PAGES, 1, 1, PAGE, shape.width) if values is None else values
    on.backend.import_pages(cache, range(PAGES), to_canonical(given, dtype))
    return cache


def attend(on: On, shape: Latents, step: tuple[int, ...], gain: float, beside_nan: bool) -> Any:
    """beside_nan: places past a sequence's end, and pages that no sequence holds, are NaN."""
    tables, values = page_tables(on, LENGTHS), on.values(PAGES, 1, 1, PAGE, shape.width)
    if beside_nan:
        owned = np.zeros((PAGES, PAGE), bool)
        for table, length in zip(tables, LENGTHS, strict=True):
            for start in range(0, length, PAGE):
                owned[table[start // PAGE], : length - start] = True
        values[~np.broadcast_to(owned[:, None, None, :, None], values.shape)] = np.nan
    starts = np.concatenate([[0], np.cumsum(step)])
    rows = [on.rows(int(starts[-1]), shape.heads * each, scale=gain) for each in (shape.rank, shape.head_dim)]
    given = (on.ints(starts), on.ints(LENGTHS), on.ints(tables))
    return ops.latent_attention(*rows, filled(on, shape, values), *given, heads=shape.heads, scale=shape.width**-0.5)


def stored(on: On, shape: Latents, tokens: int, style: str) -> Any:
    """The whole cache. What is rounded are keys at position 0, which no rounding can part."""
    cache, weight = filled(on, shape), on.tensor(on.values(shape.rank))
    slots = on.ints(on.random.permutation(PAGES * PAGE)[:tokens])
    positions = on.ints(np.arange(tokens) * 53 % 400 * (shape.kv == "f32"))
    table = on.tensor(rope_table(400, shape.rotary))
    rows = on.values(tokens, shape.width)
    if shape.kv != "f32":  # the norm divides by such a root mean square without rounding
        rows[:, : shape.rank] = np.sign(rows[:, : shape.rank])
    where = (positions, table) if style != "still" else (None, None)
    ops.store_latent(on.tensor(rows), weight, *where, cache, slots, eps=0.0, style=style)
    return on.backend.export_pages(cache, range(PAGES)).astype(np.float32)


def multiplied(on: On, format_name: str, heads: int, out: int, width: int, head_dim: int, tokens: int) -> Any:
    """x has NaN in the columns that are left out."""
    x = on.values(tokens, heads, head_dim)
    x[..., : head_dim - width] = np.nan
    return ops.linear_heads(on.tensor(x.reshape(tokens, -1)), on.experts(format_name, heads, out, width))


def cases() -> Iterator[Case]:
    for format_name, heads, out, width, rest in PRODUCTS:
        assert width % max(1, FORMATS[format_name].values) == 0 or width == width_of(format_name, 1)
        for tokens in (1, 7, 33):
            name = f"{format_name} {heads} of {out}x{width} x{tokens}"
            yield case("linear_heads", name, multiplied, format_name, heads, out, width, width + rest, tokens)
    for shape in CHOSEN:
        mark, large = shape in COMMON, shape.rank > 100
        for tokens in (1, 33):
            for style in ("half", "adjacent", "still"):
                name = f"{shape} {style} x{tokens}"
                yield case("store_latent", name, stored, shape, tokens, style, common=mark)
        for step in STEPS:
            for gain, nan in ((1.0, False), (0.0, False), (8.0, False), (1.0, True)):
                usual = (gain, nan) == (1.0, False) or (step in STEPS[:3] and not large)
                name = f"{shape} {step} queries of {gain:g}{' beside NaN' * nan}"
                marks = {"common": mark and step in STEPS[:3], "rare": not usual or (large and step not in STEPS[:2])}
                yield case("latent_attention", name, attend, shape, step, gain, nan, **marks)
