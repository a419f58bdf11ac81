"""Attention over pages: an online softmax over pages of 64 positions, split at fixed positions and merged in order.

Every row (one head of one token) goes through the same arithmetic in both kernels: pages of a split in order with a
running maximum (Milakov and Gimelshein 2018), splits of SPLIT positions merged in order (Flash-Decoding). So the result
does not depend on the tile, the batch, or the thread that computed a split.
"""

from itertools import pairwise
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.attention_page import (
    MIN_SCORE,
    AttentionRows,
    AttentionShape,
    add_page,
    merge_split,
    write_out,
)
from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.ops.paged_attention import PAGE

SPLIT = 256  # positions
TILE_TOKENS = 16  # tokens of one sequence that share a pass over its pages


def split_rows(num_rows: int, max_rows: int) -> list[tuple[int, int]]:
    """Split rows into as few groups as fit the registers, of nearly equal size; return (first, count) of each.

    Every group converts the page again.
    """
    num_groups = -(-num_rows // max_rows)
    bounds = [num_rows * at // num_groups for at in range(num_groups + 1)]
    return [(first, stop - first) for first, stop in pairwise(bounds)]


def locate_split(k: Builder, f: Any, item: Val) -> tuple[Val, Val, Val]:
    """Return split, kv head and sequence of an item of `attention_split`."""
    rest = item // f.splits
    return item % f.splits, rest % f.kv_heads, rest // f.kv_heads


def key_address(k: Builder, f: Any, pages: KvPages, sequence: Val, head: Val, position: Val) -> Val:
    """Return the address of a head's keys in the page that holds a position of a sequence."""
    number = k.load(i32, f.table, sequence * f.table_stride + position // PAGE * 4).sext(i64)
    return k.at(f.cache, number * f.page_bytes + head * (2 * pages.half_bytes))


def first_key_address(k: Builder, f: Any, pages: KvPages, item: Val) -> Val:
    """Return the approximate address of the keys with which an item begins, ignoring a window."""
    split, head, sequence = locate_split(k, f, item)
    length = k.load(i32, f.lengths, sequence * 4).sext(i64)
    return key_address(k, f, pages, sequence, head, k.min(split * SPLIT, length - 1))


def attention_split(target: Any, heads: AttentionShape) -> Kernel:
    """Attend for one token per sequence. An item is one kv head and one split of one sequence.

    Results go to `parts`; with a single split to `out`. parts: f32 [sequence][kv_head][split][group][padded + 16]:
    weighted values, then maximum and sum of weights.
    """
    pages, group = heads.pages, heads.group
    groups = split_rows(group, target.tiles.attention_rows)
    record = 4 * (pages.padded + 16)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        rows = AttentionRows(k, heads, scratch, group)
        with k.range(first, last) as item:
            split, head, sequence = locate_split(k, f, item)
            length = k.load(i32, f.lengths, sequence * 4).sext(i64)
            lowest = heads.lowest(k, f, length - 1)
            start, stop = split * SPLIT, k.min(length, split * SPLIT + SPLIT)
            out = k.at(f.parts, item * (group * record))
            rows.start_split()
            token = k.load(i32, f.starts, sequence * 4).sext(i64)
            q = k.at(f.q, token * f.q_stride + head * (4 * pages.head_dim * group))
            next_item = first_key_address(k, f, pages, k.min(item + 1, last - 1))
            with k.when(stop > lowest), k.range(k.max(start, lowest // PAGE * PAGE), stop, PAGE) as base:
                keys = key_address(k, f, pages, sequence, head, base)
                next_page = key_address(k, f, pages, sequence, head, k.min(base + PAGE, stop - 1))
                following = k.select(base + PAGE < stop, next_page, next_item)
                span = heads.span(k, f, head, base, k.min(stop - base, PAGE), lambda row: length - 1)
                for chunk, count in groups:
                    here = k.at(q, chunk * 4 * pages.head_dim)
                    values = k.at(keys, pages.half_bytes)
                    add_page(k, rows, chunk, count, here, 4 * pages.head_dim, keys, values, pages, span, following)
            direct = k.at(f.out, token * f.out_stride + head * (4 * pages.head_dim * group))
            with k.ir.if_else(f.splits.equals(1).raw) as (alone, several):
                with alone:  # nothing to merge
                    for row in range(group):
                        peak, total = k.load(f32, rows.number(row, 0)), k.sum(k.load(k.vf, rows.totals, row * 64))
                        sums, place = k.at(rows.sums, row * rows.wide), k.at(direct, row * 4 * pages.head_dim)
                        write_out(k, pages, peak, total, sums, place, heads.sink(k, f, head * group + row))
                with several:
                    for row in range(group):
                        _store_partial(k, rows, row, k.at(out, row * record))

    return Kernel(
        f"attention_split_{heads.name}",
        heads.fields("splits:c parts:p out:p out_stride:i"),
        body,
        scratch=AttentionRows.nbytes(heads, group, max(count for _, count in groups)),
    )


def _store_partial(k: Builder, rows: AttentionRows, row: int, place: Val) -> None:
    """Store a row's weighted values, maximum and sum of weights, for `attention_merge`."""
    for at in range(0, rows.wide, 4 * k.lanes):
        k.store(k.load(k.vf, rows.sums, row * rows.wide + at), place, at)
    k.store(k.load(f32, rows.number(row, 0)), place, rows.wide)
    k.store(k.sum(k.load(k.vf, rows.totals, row * 64)), place, rows.wide + 4)


def attention_merge(target: Any, heads: AttentionShape) -> Kernel:
    """Merge the results of `attention_split`. An item is one query head of one sequence."""
    pages, group = heads.pages, heads.group
    record = 4 * (pages.padded + 16)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            count = f.kv_heads * group
            sequence, head = item // count, item % count
            k.store(k.const(f32, MIN_SCORE), scratch)
            k.store(k.const(f32, 0), scratch, 4)
            sums = k.at(scratch, 64)
            for at in range(0, 4 * pages.padded, 4 * k.lanes):
                k.store(k.const(k.vf, 0), sums, at)
            length = k.load(i32, f.lengths, sequence * 4).sext(i64)
            base = (sequence * f.kv_heads + head // group) * f.splits
            with k.range((length + (SPLIT - 1)) // SPLIT) as split:
                place = k.at(f.parts, ((base + split) * group + head % group) * record)
                peak, total = k.load(f32, place, 4 * pages.padded), k.load(f32, place, 4 * pages.padded + 4)
                merge_split(k, pages, scratch, sums, peak, total, place)
            token = k.load(i32, f.starts, sequence * 4).sext(i64)
            out = k.at(f.out, token * f.out_stride + head * (4 * pages.head_dim))
            peak, total = k.load(f32, scratch), k.load(f32, scratch, 4)
            write_out(k, pages, peak, total, sums, out, heads.sink(k, f, head))

    text = "parts:p lengths:p starts:p splits:c kv_heads:i out:p out_stride:i" + heads.sink_field
    return Kernel(f"attention_merge_{heads.name}", parse_fields(text), body, scratch=64 + 4 * pages.padded)
