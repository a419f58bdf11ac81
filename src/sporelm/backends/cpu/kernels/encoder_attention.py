"""Attention of whole texts: keys and values are put into pages, then tiles of a text's tokens pass over all of them.

The pages are those of `kernels/kv_pages.py` in f32, and the arithmetic of a row is that of `attention_tile`: pages of a
split in order, splits in order. A text's pages begin with the text, so that its place in a step does not change a bit.
Text t has the pages from starts[t] // PAGE + t on, which never belong to another text, because a text ends within its
last page.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.attention_page import AttentionRows, AttentionShape, VisibleSpan, add_page, write_out
from sporelm.backends.cpu.kernels.attention_tile import gather_queries
from sporelm.backends.cpu.kernels.paged_attention import SPLIT, TILE_TOKENS
from sporelm.backends.cpu.kernels.relative_scores import RELATIVE_FIELDS, gather_relative_scores
from sporelm.ops.paged_attention import PAGE


def max_pages(tokens: int, texts: int) -> int:
    """Return the maximum number of pages of this many tokens and texts."""
    return tokens // PAGE + texts


def text_pages(target: Any, heads: AttentionShape) -> Kernel:
    """Write keys and values into pages. An item is one tile of tokens and one kv head."""
    pages = heads.pages

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            head, tile = item % f.kv_heads, item // f.kv_heads
            text, begin, token, stop = _locate_tile(k, f, tile)
            cache = k.at(f.pages, (begin // PAGE + text) * f.page_bytes)
            with k.range(token, stop) as row:
                at = row * f.kv_stride + head * (4 * pages.head_dim)
                pages.store(k, cache, f.page_bytes, row - begin, head, k.at(f.k, at), k.at(f.v, at))

    text = "k:p v:p kv_stride:i pages:p page_bytes:i starts:p kv_heads:i"
    return Kernel(f"text_pages_{pages.name}", parse_fields(text), body)


def encoder_attention(target: Any, heads: AttentionShape, *, windowed: bool) -> Kernel:
    """Compute attention. An item is one tile of tokens and one kv head; rows are token-major within the tile."""
    pages, group, largest = heads.pages, heads.group, target.tiles.attention_rows
    count = -(-TILE_TOKENS * group // largest) * largest  # rows of a full tile, in whole register tiles
    q_bytes = count * 4 * pages.padded

    apart_bytes = count * 4 * PAGE * heads.disentangled

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        queries, rows = scratch, AttentionRows(k, heads, k.at(scratch, q_bytes + apart_bytes), count)
        added = k.at(scratch, q_bytes) if heads.disentangled else None
        with k.range(first, last) as item:
            head, tile = item % f.kv_heads, item // f.kv_heads
            text, begin, token, stop = _locate_tile(k, f, tile)
            length = k.load(i32, f.starts, text * 4 + 4).sext(i64) - begin
            q_at = k.at(f.q, head * (4 * pages.head_dim * group))
            gather_queries(k, f, q_at, queries, token, stop, pages, group)
            rows.reset()
            used = ((stop - token) * group + (largest - 1)) // largest * largest
            lowest, end = k.const(i64, 0), length
            if windowed:
                lowest, end = k.max(token - begin - f.half_window, 0), k.min(length, stop - begin + f.half_window)
            cache = k.at(f.pages, (begin // PAGE + text) * f.page_bytes + head * (2 * pages.half_bytes))
            with k.range(lowest // SPLIT * SPLIT, end, SPLIT) as split:
                rows.start_split()
                split_stop = k.min(end, split + SPLIT)
                with k.range(k.max(split, lowest // PAGE * PAGE), split_stop, PAGE) as base:
                    keys = k.at(cache, base // PAGE * f.page_bytes)
                    own = token - begin, length
                    span = _visible_span(k, f, heads, head, (base, split_stop), own, added, windowed=windowed)
                    if added is not None:
                        gather_relative_scores(
                            k, f, head, begin, (base, span.positions), (token - begin, stop - begin), added
                        )
                    with k.range(0, used, largest) as row:
                        q = k.at(queries, row * (4 * pages.padded))
                        values = k.at(keys, pages.half_bytes)
                        add_page(k, rows, row, largest, q, 4 * pages.padded, keys, values, pages, span)
                rows.end_split()
            out_at = k.at(f.out, head * (4 * pages.head_dim * group))
            with k.range((stop - token) * group) as row:
                out = k.at(out_at, (token + row // group) * f.out_stride + row % group * (4 * pages.head_dim))
                peak, total = k.load(f32, rows.number(row, 2)), k.load(f32, rows.number(row, 3))
                write_out(k, pages, peak, total, k.at(rows.outs, row * rows.wide), out, None)

    text = (
        "q:p q_stride:i pages:p page_bytes:i starts:p kv_heads:i scale:f out:p out_stride:i"
        + " half_window:i" * windowed
    )
    text += " slopes:p" * heads.slopes + " biases:p spread:i" * heads.biases + RELATIVE_FIELDS * heads.disentangled
    name = f"encoder_attention_{heads.name}{'_windowed' * windowed}"
    return Kernel(
        name, parse_fields(text), body, scratch=q_bytes + apart_bytes + AttentionRows.nbytes(heads, count, largest)
    )


def _visible_span(
    k: Builder,
    f: Any,
    heads: AttentionShape,
    head: Val,
    page: tuple[Val, Val],
    rows: tuple[Val, Val],
    added: Val | None,
    *,
    windowed: bool,
) -> VisibleSpan:
    """The part of a page that rows of a tile see.

    page   its first position, and the end of the positions to read
    rows   the position of the tile's first row, and the number of rows of its text
    added  the values added to scores of the tile's rows: f32 [rows][64]; None: nothing, or one of `heads`' kinds
    """
    (base, stop), (first, length), group = page, rows, heads.group

    def own(row: Any) -> Val:
        return first + row // group

    def bias(row: Any) -> Val:
        if added is not None:
            return k.at(added, row * (4 * PAGE))
        place = k.min(own(row), length - 1)  # of a tile's padding rows: none past the text, as in the table
        at = (head * group + row % group) * f.spread + f.spread // 2 + base - place
        return k.at(f.biases, at * 4)

    def slope(row: Any) -> Val:
        return k.load(f32, f.slopes, (head * group + row % group) * 4)

    return VisibleSpan(
        base,
        k.min(stop - base, PAGE),
        f.scale,
        length,
        (lambda row: k.min(own(row) + f.half_window, length - 1)) if windowed else lambda row: length - 1,
        slope=slope if heads.slopes else None,
        centre=own if heads.slopes else None,
        below=(lambda row: own(row) - f.half_window - 1) if windowed else None,
        bias=bias if heads.biases or heads.disentangled else None,
    )


def _locate_tile(k: Builder, f: Any, tile: Val) -> tuple[Val, Val, Val, Val]:
    """Return the text of a tile, the text's first row, the tile's first row, and the row past its last."""
    text, left = k.var(k.const(i64, 0)), k.var(tile)

    def bound(number: Val) -> Val:
        return k.load(i32, f.starts, number * 4).sext(i64)

    def tiles() -> Val:
        return (bound(text.value + 1) - bound(text.value) + (TILE_TOKENS - 1)) // TILE_TOKENS

    with k.loop_while(lambda: left.value >= tiles()):
        left.set(left.value - tiles())
        text.set(text.value + 1)
    begin = bound(text.value)
    token = begin + left.value * TILE_TOKENS
    return text.value, begin, token, k.min(bound(text.value + 1), token + TILE_TOKENS)
