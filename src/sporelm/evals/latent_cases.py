"""Cases of latent attention: products with a matrix a head, what writes the pages, and attention over them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.protocol import Backend
from sporelm.evals.attention_cases import SLOTS
from sporelm.evals.conformance_case import ConformanceCase, random_values
from sporelm.ops.canonical_pages import KV_TYPES, read_canonical, to_canonical
from sporelm.ops.paged_attention import PAGE
from sporelm.quant import F32, Q4_K, Q8_0, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import ElementType
from sporelm.tensor.tensor import Tensor

HEADS = 3
RANK = 24
ROTARY = 10
HEAD_DIM = 15


def latent_cases() -> Iterator[ConformanceCase]:
    """Every kind of numbers in the cache; products of each activation."""
    for form, width in ((F32, 26), (Q8_0, 64), (Q4_K, 256)):
        for tokens in (1, 7):
            name = f"{form.name} {tokens}"
            yield ConformanceCase(
                "linear_heads", name, partial(run_linear_heads, form=form, width=width, tokens=tokens)
            )
    for dtype in KV_TYPES.values():
        for style in ("half", "adjacent"):
            yield ConformanceCase(
                "store_latent", f"{dtype.name} {style}", partial(run_store_latent, dtype=dtype, style=style)
            )
        yield ConformanceCase("latent_attention", dtype.name, partial(run_latent_attention, dtype=dtype))


def run_linear_heads(backend: Backend, *, form: type[QuantFormat], width: int, tokens: int) -> Any:
    """Each head has five columns more, which are left out."""
    shape = (HEADS, 33, width)
    blocks = quantize_tensor(form, random_values(HEADS * 33, width))
    weight = backend.pack(StoredTensor("weight", form, shape, blocks))
    return ops.linear_heads(backend.tensor(random_values(tokens, HEADS * (width + 5))), weight)


def fill_latent_cache(backend: Backend, dtype: ElementType) -> Tensor:
    """A cache of three pages full of random values."""
    (cache,) = backend.allocate_pages(3, [(RANK + ROTARY,)], dtype)
    backend.import_pages(cache, [0, 1, 2], to_canonical(random_values(3, 1, 1, PAGE, RANK + ROTARY), dtype))
    return cache


def run_store_latent(backend: Backend, *, dtype: ElementType, style: str) -> Any:
    """The whole cache. What is rounded are rows that the norm leaves as they are, at position 0, which no rounding can
    part."""
    cache = fill_latent_cache(backend, dtype)
    exact = dtype is KV_TYPES["f32"]
    rows = random_values(3, RANK + ROTARY, seed=2)
    rows[:, :RANK] = rows[:, :RANK] if exact else np.sign(rows[:, :RANK])
    angles = np.arange(64)[:, None] / 10000 ** (np.arange(0, ROTARY, 2) / ROTARY)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    where = np.array([0, 1, 63] if exact else [0, 0, 0], np.int32)
    given = [backend.tensor(array) for array in (rows, random_values(RANK), where, table)]
    ops.store_latent(*given, cache, backend.tensor(SLOTS), eps=0.0, style=style)
    return read_canonical(backend.export_pages(cache, [0, 1, 2]), dtype, RANK + ROTARY)


def run_latent_attention(backend: Backend, *, dtype: ElementType) -> Any:
    """Two sequences over three pages: four rows at the end of 70 positions, one row at the end of 5."""
    cache = fill_latent_cache(backend, dtype)
    tables = [np.array([0, 4, 5], np.int32), np.array([70, 5], np.int32), np.array([[2, 0], [1, 1]], np.int32)]
    rows = [backend.tensor(random_values(5, HEADS * width)) for width in (RANK, HEAD_DIM)]
    return ops.latent_attention(*rows, cache, *map(backend.tensor, tables), heads=HEADS, scale=0.3)
