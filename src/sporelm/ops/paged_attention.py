"""Attention over a paged KV cache.

A cache has the logical shape [pages, 2, kv_heads, PAGE, head_dim], keys first. Its physical layout belongs to the
back-end. A Q8_0 cache holds blocks of 32 numbers along head_dim: writes round to them, reads dequantize. A slot is page
* PAGE + offset. Several sequences share a step: `starts` gives the rows of each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sporelm.errors import OpError
from sporelm.ops.argument_checks import check_ints, check_range, check_rows, check_vector
from sporelm.ops.canonical_pages import KV_TYPES, read_pages, write_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed, spec_of

PAGE = 64  # positions per page


def page_shape(kept: Sequence[int]) -> tuple[int, ...]:
    """Return the logical shape of one page.

    A layer that keeps (kv_heads, head_dim) has keys and values. One that keeps (width,) has a single row per position,
    which all heads share (ops/mla.py).
    """
    if len(kept) == 1:
        return 1, 1, PAGE, kept[0]
    kv_heads, head_dim = kept
    return 2, kv_heads, PAGE, head_dim


def check_cache(cache: Any) -> Spec:
    """Check that an argument is a cache [pages, 2, kv_heads, PAGE, head_dim] of one of KV_TYPES."""
    pages = spec_of(cache)
    shaped = len(pages.shape) == 5 and (pages.shape[1], pages.shape[3]) == (2, PAGE)
    require(shaped, f"cache {pages} must be [pages, 2, kv_heads, {PAGE}, head_dim]")
    require(pages.dtype in KV_TYPES.values(), f"cache {pages} must hold one of {', '.join(KV_TYPES)}")
    return pages


def store_kv_spec(k: Any, v: Any, cache: Any, slots: Any) -> tuple[Spec, ...]:
    """Return the result specs of `store_kv`: it has no result."""
    keys, values, pages, where = check_rows("k", k), check_rows("v", v), check_cache(cache), check_ints("slots", slots)
    width = require_fixed(pages.shape[2]) * require_fixed(pages.shape[4])
    require(keys == values and keys.shape[1] == width, f"k {keys} and v {values} must both have {width} columns")
    require(where.shape == keys.shape[:1], f"slots {where} must have one element a row of k {keys}")
    return ()


def check_slots(k: Any, v: Any, cache: Any, slots: Any) -> None:
    """Raise OpError for a slot outside the cache."""
    check_range("slots", slots.numpy(), 0, cache.shape[0] * PAGE)


def attention_spec(
    q: Any,
    cache: Any,
    starts: Any,
    lengths: Any,
    pages: Any,
    sinks: Any = None,
    slopes: Any = None,
    spans: Any = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
) -> Spec:
    """Return the result spec of `attention`."""
    queries, store = check_rows("q", q), check_cache(cache)
    check_ints("starts", starts)
    counts, tables = check_ints("lengths", lengths), check_ints("pages", pages, rank=2)
    require(counts.shape == tables.shape[:1], f"pages {tables} must have one row an element of lengths {counts}")
    head_dim, kv_heads = require_fixed(store.shape[4]), require_fixed(store.shape[2])
    require(head_dim % 2 == 0, f"head_dim {head_dim} must be even")
    whole = require_fixed(queries.shape[1]) % (head_dim * kv_heads) == 0
    require(whole, f"q {queries} must be whole groups of {kv_heads} x {head_dim}")
    heads = require_fixed(queries.shape[1]) // head_dim
    for name, numbers in (("sinks", sinks), ("slopes", slopes)):
        if numbers is not None:
            given = check_vector(name, numbers)
            require(given.shape == (heads,), f"{name} {given} must have one element a head: {heads}")
    require(window is None or window > 0, f"window {window} must be positive")
    require(chunk is None or chunk > 0, f"chunk {chunk} must be positive")
    require(window is None or chunk is None, f"window {window} and chunk {chunk}: a row has one of them at most")
    require(softcap is None or 0 < softcap < np.inf, f"softcap {softcap} must be positive")
    if spans is not None:
        images = check_ints("spans", spans, rank=2)
        require(images.shape == (queries.shape[0], 2), f"spans {images} must have two elements a row of q {queries}")
        require(slopes is None, f"spans {images} and slopes: a score falls with the distance to earlier positions only")
        require(chunk is None, f"spans {images} and chunk {chunk}: an image may lie in several chunks")
    return queries


def check_attention(
    q: Any,
    cache: Any,
    starts: Any,
    lengths: Any,
    pages: Any,
    sinks: Any = None,
    slopes: Any = None,
    spans: Any = None,
    **options: Any,
) -> None:
    """Raise OpError for what `check_pages` rejects, or for a row outside its image or an image outside its
    sequence."""
    check_pages(q, cache, starts, lengths, pages)
    if spans is None:
        return
    first, stop = spans.numpy().astype(np.int64).T
    counts = np.diff(starts.numpy().astype(np.int64))
    held = np.repeat(lengths.numpy().astype(np.int64), counts)
    place = held - np.repeat(starts.numpy()[1:], counts) + np.arange(len(held))
    is_text = (first == 0) & (stop == 0)
    for row in np.flatnonzero(~(is_text | ((first >= 0) & (first <= place) & (place < stop) & (stop <= held)))):
        allowed = f"(0, 0), or an image with position {place[row]} among {held[row]} positions"
        raise OpError(f"spans[{row}] ({first[row]}, {stop[row]}) must be {allowed}")


def check_pages(q: Any, cache: Any, starts: Any, lengths: Any, pages: Any) -> None:
    """Raise OpError for rows outside q, lengths beyond the page table, or pages outside the cache."""
    first, held, table = starts.numpy(), lengths.numpy(), pages.numpy()
    counts = np.diff(first.astype(np.int64))
    ordered = len(first) == len(held) + 1 and first[0] == 0 and first[-1] == q.shape[0] and (counts >= 0).all()
    wanted = f"rise from 0 to the {q.shape[0]} rows of q in {len(held) + 1} elements"
    require(bool(ordered), f"starts {first.tolist()[:8]} must {wanted}")
    check_range("lengths", held, 0, table.shape[1] * PAGE + 1)
    for index in np.flatnonzero(held < counts):
        raise OpError(f"lengths[{index}] is less than the sequence's rows in this step")
    used = np.arange(table.shape[1]) < -(-held[:, None] // PAGE)
    check_range("pages", np.where(used, table, 0), 0, cache.shape[0])


@op(store_kv_spec, updates=("cache",), indices=check_slots)
def store_kv(k, v, cache, slots):  # k, v [tokens, kv_heads * head_dim], slots int32 [tokens]
    """Write each row's keys and values to its slot. Two rows of a step never share a slot."""
    page, offset = slots // PAGE, slots % PAGE
    shape = (len(k), cache.shape[2], cache.shape[4])
    write_rows(cache, page, 0, offset, k.reshape(shape))
    write_rows(cache, page, 1, offset, v.reshape(shape))
    return ()


@op(attention_spec, indices=check_attention, host=("starts", "lengths"))
def attention(
    q,
    cache,
    starts,
    lengths,
    pages,
    sinks=None,
    slopes=None,
    spans=None,
    *,
    scale,
    window=None,
    softcap=None,
    chunk=None,
):
    """Attend causally to each sequence's own pages: softmax(scale * q k) v, with grouped queries (Ainslie et al. 2023).

    q [tokens, heads * head_dim]; starts int32 [sequences + 1]: rows starts[s]:starts[s+1] are the last rows of sequence
    s; lengths int32 [sequences]: positions in the cache, these rows included; pages int32 [sequences, max_pages], the
    page table. A row at position p sees positions p - window < i <= p (all i <= p without a window). With `chunk` it
    sees its own chunk of that many positions, up to itself (Llama 4).

    sinks float32 [heads] add one score per row and head, of a key whose value is zero (gpt-oss, after Xiao et al.
    2024). softcap bounds scores: softcap * tanh(score / softcap) (Gemma 2). slopes float32 [heads] then lower the score
    of a key by slope * (p - i) (ALiBi, Press et al. 2022).

    spans int32 [tokens, 2] let the rows of an image attend to each other in both directions: the positions, in the
    row's sequence, of the image's first row and past its last; (0, 0) for a row of text. Such a row sees positions
    p - window < i < max(p + 1, spans[row, 1]). The keys of the whole image must be in the cache. So the window hides
    the beginning of an image that is longer, as in Gemma 3 (Gemma Team 2025): `create_attention_mask` of gemma_pytorch,
    `create_masks_for_vision_model` of transformers and LLAMA_NON_CAUSAL_TYPE_ALL of llama.cpp all intersect the window
    with the union of the causal range and the image. Spans exclude slopes and chunks.
    """
    kv_heads, head_dim = cache.shape[2], cache.shape[4]
    out = np.zeros(q.shape, np.float32)
    for sequence, length in enumerate(lengths):
        new = slice(starts[sequence], starts[sequence + 1])
        count = new.stop - new.start
        if count == 0:
            continue
        held = read_pages(cache, pages[sequence, : -(-length // PAGE)])  # [pages, 2, kv_heads, PAGE, head_dim]
        keys, values = held.transpose(1, 2, 0, 3, 4).reshape(2, kv_heads, -1, head_dim)[:, :, :length]
        heads = q[new].reshape(count, kv_heads, -1, head_dim)
        scores = np.einsum("tkgd,kpd->tkgp", heads * np.float32(scale), keys)
        if softcap is not None:
            scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
        place, row = np.arange(length), np.arange(length - count, length)[:, None]
        if slopes is not None:
            scores = scores + slopes.reshape(kv_heads, -1, 1) * (place - row).astype(np.float32)[:, None, None]
        seen = place <= row if spans is None else (place <= row) | (place < spans[new, 1:])
        seen = seen if window is None else seen & (place > row - window)
        seen = seen if chunk is None else seen & (place >= row // chunk * chunk)
        scores = np.where(seen[:, None, None], scores, -np.inf)
        peak, total = scores.max(axis=-1, keepdims=True), np.float32(0)
        if sinks is not None:
            sink = sinks.reshape(kv_heads, -1, 1)
            peak = np.maximum(peak, sink)
            total = np.exp(sink - peak)
        weights = np.exp(scores - peak)
        weights /= weights.sum(axis=-1, keepdims=True) + total
        used = np.where(np.expand_dims(seen.any(axis=0), -1), values, 0)
        out[new] = np.einsum("tkgp,kpd->tkgd", weights, used).reshape(count, -1)
    return out
