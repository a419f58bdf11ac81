"""Latent attention over selected slots: rows of the cache are gathered one by one instead of by whole pages.

The arithmetic is that of kernels/mla.py: 64 rows at a time, splits of 256 merged in order, both counted along the list
of slots. A list of all positions gives the same bits as attention without a list.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import KernelField, parse_fields
from sporelm.backends.cpu.kernels.attention_page import MIN_SCORE, merge_split, write_out
from sporelm.backends.cpu.kernels.latent_rows import LatentRows, LatentShape
from sporelm.backends.cpu.kernels.paged_attention import SPLIT
from sporelm.ops.paged_attention import PAGE

PREFETCH_ROWS = 6  # rows that are prefetched


def _fields(more: str) -> tuple[KernelField, ...]:
    text = "latent:p latent_stride:i q:p q_stride:i cache:p page_bytes:i chosen:p chosen_stride:i k:i scale:f"
    return parse_fields(f"{text} {more}")


def sparse_mla_split(target: Any, shape: LatentShape) -> Kernel:
    """Attend to a part of each list. An item is some heads of one token and SPLIT slots of its list.

    Results go to `parts`, f32 [token][split][head][padded + 16]: weighted values, then maximum and sum of weights.
    """
    record = 4 * (shape.values.padded + 16)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        rows, used = LatentRows(k, shape, scratch, shape.each), k.const(i64, shape.each)
        with k.range(first, last) as item:
            rest, head = item // shape.chunks, item % shape.chunks * shape.each
            token, start = rest // f.splits, rest % f.splits * SPLIT
            slots = k.at(f.chosen, token * f.chosen_stride)
            count = _count_slots(k, slots, start, k.min(start + SPLIT, f.k))
            with k.when(count > 0):
                rows.gather(f, token, head, used)
                rows.set_positions(f.k, used)
                _attend_split(k, f, rows, slots, start, start + count, used)
                parts = k.at(f.parts, (rest * shape.heads + head) * record)
                with k.range(k.min(k.const(i64, shape.heads) - head, shape.each)) as row:
                    sums, place = k.at(rows.sums, row * rows.wide), k.at(parts, row * record)
                    with k.range(0, rows.wide, 4 * k.lanes) as at:
                        k.store(k.load(k.vf, sums, at), place, at)
                    k.store(k.load(f32, rows.peaks, row * 4), place, rows.wide)
                    k.store(k.load(f32, rows.totals, row * 4), place, rows.wide + 4)

    nbytes = LatentRows.nbytes(shape, shape.each, target.lanes)
    return Kernel(f"chosen_split_{shape.name}", _fields("parts:p splits:i"), body, scratch=nbytes)


def sparse_mla_merge(target: Any, shape: LatentShape) -> Kernel:
    """Merge the results of `sparse_mla_split`. An item is one head of one token."""
    values = shape.values
    wide, record = 4 * values.padded, 4 * (values.padded + 16)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            token, head = item // shape.heads, item % shape.heads
            slots, sums = k.at(f.chosen, token * f.chosen_stride), k.at(scratch, 64)
            k.store(k.const(f32, MIN_SCORE), scratch)
            k.store(k.const(f32, 0), scratch, 4)
            for at in range(0, wide, 4 * k.lanes):
                k.store(k.const(k.vf, 0), sums, at)
            with k.range(f.splits) as split, k.when(k.load(i32, slots, split * (4 * SPLIT)) >= 0):
                place = k.at(f.parts, ((token * f.splits + split) * shape.heads + head) * record)
                peak, total = k.load(f32, place, wide), k.load(f32, place, wide + 4)
                merge_split(k, values, scratch, sums, peak, total, place)
            out = k.at(f.out, token * f.out_stride + head * (4 * shape.rank))
            write_out(k, values, k.load(f32, scratch), k.load(f32, scratch, 4), sums, out, None)

    text = "chosen:p chosen_stride:i parts:p splits:i out:p out_stride:i"
    return Kernel(f"chosen_merge_{values.name}_{shape.heads}", parse_fields(text), body, scratch=64 + wide)


def sparse_mla_whole(target: Any, shape: LatentShape) -> Kernel:
    """Attend to whole lists. An item is some heads of one token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        rows, used = LatentRows(k, shape, scratch, shape.each), k.const(i64, shape.each)
        with k.range(first, last) as item:
            token, head = item // shape.chunks, item % shape.chunks * shape.each
            slots = k.at(f.chosen, token * f.chosen_stride)
            rows.gather(f, token, head, used)
            rows.set_positions(f.k, used)
            rows.reset(used)
            with k.range(0, f.k, SPLIT) as start:
                count = _count_slots(k, slots, start, k.min(start + SPLIT, f.k))
                with k.when(count > 0):
                    _attend_split(k, f, rows, slots, start, start + count, used)
                    rows.end_split(used)
            out = k.at(f.out, token * f.out_stride + head * (4 * shape.rank))
            with k.range(k.min(k.const(i64, shape.heads) - head, shape.each)) as row:
                peak, total = k.load(f32, rows.merged, row * 8), k.load(f32, rows.merged, row * 8 + 4)
                place = k.at(out, row * (4 * shape.rank))
                write_out(k, shape.values, peak, total, k.at(rows.outs, row * rows.wide), place, None)

    nbytes = LatentRows.nbytes(shape, shape.each, target.lanes)
    return Kernel(f"chosen_whole_{shape.name}", _fields("out:p out_stride:i"), body, scratch=nbytes)


def _count_slots(k: Builder, slots: Val, start: Val, stop: Val) -> Val:
    """Count the slots of a list, which come first in it."""
    count = k.zero(i64)
    with k.range(start, stop) as place:
        there = k.load(i32, slots, place * 4) >= 0
        count.set(count.value + k.select(there, k.index(1), k.index(0)))
    return count.value


def _attend_split(k: Builder, f: Any, rows: LatentRows, slots: Val, start: Val, stop: Val, used: Val) -> None:
    """Begin a split, and attend to the slots start .. stop of the list."""
    pages = rows.shape.pages

    def row_at(place: Val) -> Val:
        slot = k.load(i32, slots, place * 4).sext(i64)
        return k.at(f.cache, slot // PAGE * f.page_bytes + slot % PAGE * pages.row_bytes)

    rows.start_split(used)
    with k.range(start, stop, PAGE) as base:
        positions = k.min(stop - base, PAGE)
        with k.range(positions) as position:
            ahead = row_at(k.min(base + position + PREFETCH_ROWS, stop - 1))
            for line in range(0, pages.row_bytes, 64):
                k.prefetch(ahead, line)
            pages.widen(k, row_at(base + position), k.at(rows.page, position * rows.row))
        rows.attend(base, positions, used)
