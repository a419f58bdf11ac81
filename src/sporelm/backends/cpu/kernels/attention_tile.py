"""Attention of many tokens: tiles of a sequence's tokens share each pass over its pages.

An item is one tile and one kv head. Pages are widened to f32 once per tile. Rows are token-major within the tile, each
token with the heads of one group.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.kernels.attention_page import AttentionRows, AttentionShape, add_page, write_out
from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.backends.cpu.kernels.paged_attention import SPLIT, TILE_TOKENS, key_address
from sporelm.ops.paged_attention import PAGE


def attention_tile(target: Any, heads: AttentionShape) -> Kernel:
    """Attend in tiles of tokens.

    Further fields: decoding (the number of leading sequences that other kernels handle), tiles (their number over all
    other sequences), out and its row stride.
    """
    pages, group, largest = heads.pages, heads.group, target.tiles.attention_rows
    count = -(-TILE_TOKENS * group // largest) * largest  # rows of a full tile, in whole register tiles
    wide = pages.widened
    q_bytes, page_bytes = count * 4 * pages.padded, 2 * wide.half_bytes

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        queries, widened = scratch, k.at(scratch, q_bytes)
        rows = AttentionRows(k, heads, k.at(widened, page_bytes), count)
        with k.range(first, last) as item:
            head, tile = item % f.kv_heads, f.tiles - 1 - item // f.kv_heads  # the longest first
            sequence, token, stop = locate_tile(k, f, tile)
            q_at = k.at(f.q, head * (4 * pages.head_dim * group))
            gather_queries(k, f, q_at, queries, token, stop, pages, group)
            rows.reset()
            end = k.load(i32, f.starts, sequence * 4 + 4).sext(i64)
            shift = k.load(i32, f.lengths, sequence * 4).sext(i64) - end  # position = token + shift
            lowest = heads.lowest(k, f, token + shift)
            used = ((stop - token) * group + (largest - 1)) // largest * largest
            first_split = lowest // SPLIT * SPLIT
            seen_stop = find_seen_stop(k, f, token, stop, shift) if heads.spans else stop + shift

            def position(row: Any) -> Val:
                return token + row // group + shift

            def last_seen(row: Any) -> Val:
                own = k.min(token + row // group, stop - 1)  # rows past the tile's last token have no span
                return k.max(own + shift, image_stop(k, f, own) - 1)

            with k.range(first_split, seen_stop, SPLIT) as split:
                rows.start_split()
                split_stop = k.min(seen_stop, split + SPLIT)
                with k.range(k.max(split, lowest // PAGE * PAGE), split_stop, PAGE) as base:
                    keys = key_address(k, f, pages, sequence, head, base)
                    values = k.at(keys, pages.half_bytes)
                    if pages != wide:
                        pages.widen(k, keys, widened)
                        keys, values = widened, k.at(widened, wide.half_bytes)
                    filled = k.min(split_stop - base, PAGE)
                    span = heads.span(k, f, head, base, filled, position, last_seen if heads.spans else None)
                    with k.range(0, used, largest) as row:
                        q = k.at(queries, row * (4 * pages.padded))
                        add_page(k, rows, row, largest, q, 4 * pages.padded, keys, values, wide, span)
                rows.end_split()
            out_at = k.at(f.out, head * (4 * pages.head_dim * group))
            with k.range((stop - token) * group) as row:
                out = k.at(out_at, (token + row // group) * f.out_stride + row % group * (4 * pages.head_dim))
                peak, total = k.load(f32, rows.number(row, 2)), k.load(f32, rows.number(row, 3))
                sink = heads.sink(k, f, head * group + row % group)
                write_out(k, pages, peak, total, k.at(rows.outs, row * rows.wide), out, sink)

    nbytes = q_bytes + page_bytes + AttentionRows.nbytes(heads, count, largest)
    more = "decoding:c tiles:c out:p out_stride:i"
    return Kernel(f"attention_tile_{heads.name}", heads.fields(more), body, scratch=nbytes)


def locate_tile(k: Builder, f: Any, tile: Val) -> tuple[Val, Val, Val]:
    """Return the sequence of a tile, its first token, and the token past its last."""
    sequence, left = k.var(f.decoding), k.var(tile)

    def tiles() -> Val:
        start = k.load(i32, f.starts, sequence.value * 4).sext(i64)
        return (k.load(i32, f.starts, sequence.value * 4 + 4).sext(i64) - start + (TILE_TOKENS - 1)) // TILE_TOKENS

    with k.loop_while(lambda: left.value >= tiles()):
        left.set(left.value - tiles())
        sequence.set(sequence.value + 1)
    token = k.load(i32, f.starts, sequence.value * 4).sext(i64) + left.value * TILE_TOKENS
    end = k.load(i32, f.starts, sequence.value * 4 + 4).sext(i64)
    return sequence.value, token, k.min(end, token + TILE_TOKENS)


def image_stop(k: Builder, f: Any, token: Val) -> Val:
    """Return the position past the last of the image that a token belongs to; 0 for text."""
    return k.load(i32, f.spans, token * 8 + 4).sext(i64)


def find_seen_stop(k: Builder, f: Any, token: Val, stop: Val, shift: Val) -> Val:
    """Return the position past the last that one of the tokens `token` to `stop` sees."""
    highest = k.var(stop + shift)
    with k.range(token, stop) as row:
        highest.set(k.max(highest.value, image_stop(k, f, row)))
    return highest.value


def gather_queries(k: Builder, f: Any, q: Val, queries: Val, token: Val, stop: Val, pages: KvPages, group: int) -> None:
    """Copy the tile's queries to consecutive rows."""
    whole = pages.head_dim // k.lanes * k.lanes
    with k.range((stop - token) * group) as row:
        source = k.at(q, (token + row // group) * f.q_stride + row % group * (4 * pages.head_dim))
        target = k.at(queries, row * (4 * pages.padded))
        for at in range(0, whole, k.lanes):
            k.store(k.load(k.vf, source, 4 * at), target, 4 * at)
        for at in range(whole, pages.head_dim):
            k.store(k.load(f32, source, 4 * at), target, 4 * at)
