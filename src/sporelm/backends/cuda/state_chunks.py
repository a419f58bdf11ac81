"""Chunks of rows that go through a recurrent state as products of matrices, for the delta rule and for Mamba 2's scan.

All that depends on a chunk's rows alone is computed before, in parallel (`ChunkProducts`). Then a program goes through
the chunks of a sequence with a slice of the columns of a head's state.

A row reads e^G q S of the state S before its chunk, G the sum of the logarithms of decays up to it, and from the rows u
of its chunk their products with `scores`. For the delta rule u = T (beta v - beta e^G k S), where T is the inverse of
the triangular matrix of what rows correct of each other (Yang et al. 2024, "Parallelizing Linear Transformers with the
Delta Rule"); else u = v.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import dot, store_narrow
from sporelm.backends.cuda.recurrent_state import CHUNK, StepSequences, read_sequence

MAX_SLICE = 32  # columns of a state in one program
MAX_HEIGHT = 128  # rows of a state; higher ones have half as many columns, and their chunks are not loaded ahead
MIN_PRODUCT = 16  # of the sides of a tile that tensor cores multiply
WARPS, STAGES = 8, 2
READ, NEW, KNOWN, ADDED, LAST = (tl.constexpr(number) for number in range(5))
NUM_FACTORS = 5


class ChunkProducts(NamedTuple):
    """Products of the rows of each chunk. Rows are those of the step.

    scores   [heads, tokens, CHUNK] what each row reads of the rows u of its chunk
    inverse  [heads, tokens, CHUNK] T, for the delta rule
    factors  float32 [NUM_FACTORS, heads, tokens] of what a row reads of the state (READ), of its value (NEW), of what
             the state holds for its key (KNOWN), of u for the state (ADDED), of the state until the chunk's end (LAST)
    """

    scores: Tensor
    inverse: Tensor | None
    factors: Tensor


def new_products(x: Tensor, heads: int, is_delta: bool) -> ChunkProducts:
    """Return uninitialized products for the rows of x."""
    shape = heads, x.shape[0], CHUNK
    factors = torch.empty((NUM_FACTORS, heads, x.shape[0]), dtype=torch.float32, device=x.device)
    return ChunkProducts(x.new_empty(shape), x.new_empty(shape) if is_delta else None, factors)


def product_size(size: int) -> int:
    """Return the side of a tile for a number of rows or columns."""
    return max(triton.next_power_of_2(size), MIN_PRODUCT)


@triton.jit(do_not_specialize=["tokens"])
def pass_chunks_kernel(
    queries, keys, values, scores, inverse, factors, state, table, out,
    query_stride, key_stride, value_stride, heads, key_heads, tokens, chunk_rows,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, IS_DELTA: tl.constexpr, IS_EACH: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Go through a sequence's chunks with V columns of a head's state."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    slot, first, rows, begins = read_sequence(table, sequence)
    if rows == 0:
        return
    if IS_EACH:
        key_head = head // (heads // key_heads)
    else:
        key_head = head % key_heads
    narrow = queries.dtype.element_ty
    k = tl.arange(0, K)
    v = tl.program_id(0) * V + tl.arange(0, V)
    row = tl.arange(0, ROWS)
    has_k, has_v = (k < KEY_DIM)[None, :], (v < VALUE_DIM)[None, :]
    state_rows = (slot * heads + head) * KEY_DIM + k
    places = state + state_rows[:, None] * VALUE_DIM + v[None, :]
    inside = (k < KEY_DIM)[:, None] & has_v
    s = tl.load(places, mask=inside & (begins == 0), other=0.0)
    out_stride = heads * VALUE_DIM
    queries += first * query_stride + key_head * KEY_DIM
    keys += first * key_stride + key_head * KEY_DIM
    values += first * value_stride + head * VALUE_DIM
    out += first * out_stride + head * VALUE_DIM
    head_tokens = head.to(tl.int64) * tokens + first
    scores += head_tokens * ROWS
    if IS_DELTA:
        inverse += head_tokens * ROWS
    factors += head_tokens
    factor_stride = tokens.to(tl.int64) * heads
    # Within a chunk offsets fit 32 bits.
    query_places = row[:, None] * query_stride + k[None, :]
    key_places = row[:, None] * key_stride + k[None, :]
    value_places = row[:, None] * value_stride + v[None, :]
    product_places = row[:, None] * ROWS + row[None, :]
    for start in range(0, rows, chunk_rows):
        is_row = row < tl.minimum(rows - start, chunk_rows)
        is_key = is_row[:, None] if K == KEY_DIM else is_row[:, None] & has_k
        is_value = is_row[:, None] if VALUE_DIM % V == 0 else is_row[:, None] & has_v
        query = tl.load(queries + query_places, mask=is_key, other=0.0)
        key = tl.load(keys + key_places, mask=is_key, other=0.0)
        value = tl.load(values + value_places, mask=is_value, other=0.0)
        score = tl.load(scores + product_places, mask=is_row[:, None], other=0.0)
        reads = tl.load(factors + READ * factor_stride + row, mask=is_row, other=0.0)
        adds = tl.load(factors + ADDED * factor_stride + row, mask=is_row, other=0.0)
        last = tl.load(factors + LAST * factor_stride)
        held = s.to(narrow)
        if IS_DELTA:
            news = tl.load(factors + NEW * factor_stride + row, mask=is_row, other=0.0)
            knowns = tl.load(factors + KNOWN * factor_stride + row, mask=is_row, other=0.0)
            known = dot(key, held, tl.zeros((ROWS, V), tl.float32))
            wanted = value.to(tl.float32) * news[:, None] - known * knowns[:, None]
            solved = tl.load(inverse + product_places, mask=is_row[:, None], other=0.0)
            update = dot(solved, wanted.to(narrow), tl.zeros((ROWS, V), tl.float32))
            value = update.to(narrow)
        else:
            update = value.to(tl.float32)
        s = dot(tl.trans(key), (update * adds[:, None]).to(narrow), s * last)
        found = dot(query, held, tl.zeros((ROWS, V), tl.float32)) * reads[:, None]
        found = dot(score, value, found)
        store_narrow(out + row[:, None] * out_stride + v[None, :], found, is_value)
        queries += chunk_rows * query_stride
        keys += chunk_rows * key_stride
        values += chunk_rows * value_stride
        out += chunk_rows * out_stride
        scores += chunk_rows * ROWS
        if IS_DELTA:
            inverse += chunk_rows * ROWS
        factors += chunk_rows
    tl.store(places, s, mask=inside)


def pass_chunks(
    sequences: StepSequences,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    products: ChunkProducts,
    state: Tensor,
    out: Tensor,
    heads: int,
    key_heads: int,
    is_each: bool,
) -> None:
    """Compute the rows of sequences with chunks, given their products. Changes the states and `out`."""
    key_dim, value_dim = state.shape[1] // heads, state.shape[2]
    height = product_size(key_dim)
    is_tall = height > MAX_HEIGHT
    width = min(product_size(value_dim), MAX_SLICE // 2 if is_tall else MAX_SLICE)
    launch(
        pass_chunks_kernel,
        (triton.cdiv(value_dim, width), heads, len(sequences.many)),
        *(queries, keys, values, products.scores, products.inverse, products.factors, state, sequences.many, out),
        *(queries.stride(0), keys.stride(0), values.stride(0), heads, key_heads, queries.shape[0]),
        sequences.chunk_rows,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        IS_DELTA=products.inverse is not None,
        IS_EACH=is_each,
        K=height,
        V=width,
        ROWS=CHUNK,
        num_warps=WARPS,
        num_stages=1 if is_tall else STAGES,
    )
