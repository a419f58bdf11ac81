"""Multi-head latent attention: every head reads the same row of a position, as key and, its first part, as value.

An item has several rows of queries, each of one head of one token. Splits of positions and their merging are those of
kernels/paged_attention.py: a row's result depends only on itself.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.attention_page import write_out
from sporelm.backends.cpu.kernels.attention_tile import locate_tile
from sporelm.backends.cpu.kernels.latent_pages import LatentPages
from sporelm.backends.cpu.kernels.latent_rows import LatentRows, LatentShape
from sporelm.backends.cpu.kernels.norm import norm_head
from sporelm.backends.cpu.kernels.paged_attention import SPLIT, TILE_TOKENS
from sporelm.backends.cpu.kernels.rotary_embedding import RotaryShape
from sporelm.ops.paged_attention import PAGE


def latent_split(target: Any, shape: LatentShape) -> Kernel:
    """Attend for one token per sequence. An item is some heads and one split of one sequence.

    Results go to `parts`, those of a single split to `out`. The parts are those of `attention_split` with one kv head.
    """
    record = 4 * (shape.values.padded + 16)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        rows, used = LatentRows(k, shape, scratch, shape.each), k.const(i64, shape.each)
        with k.range(first, last) as item:
            rest, head = item // shape.chunks, item % shape.chunks * shape.each
            split, sequence = rest % f.splits, rest // f.splits
            length = k.load(i32, f.lengths, sequence * 4).sext(i64)
            token = k.load(i32, f.starts, sequence * 4).sext(i64)
            with k.when(split * SPLIT < length):
                rows.gather(f, token, head, used)
                rows.set_positions(length - 1, used)
                rows.start_split(used)
                stop = k.min(length, split * SPLIT + SPLIT)
                with k.range(split * SPLIT, stop, PAGE) as base:
                    following = shape.page(k, f, sequence, k.min(base + PAGE, length - 1))
                    rows.add_page(shape.page(k, f, sequence, base), base, k.min(stop - base, PAGE), used, following)
                parts = k.at(f.parts, (rest * shape.heads + head) * record)
                out = k.at(f.out, token * f.out_stride + head * (4 * shape.rank))
                with k.range(k.min(k.const(i64, shape.heads) - head, shape.each)) as row:
                    peak, total = k.load(f32, rows.peaks, row * 4), k.load(f32, rows.totals, row * 4)
                    sums = k.at(rows.sums, row * rows.wide)
                    with k.ir.if_else(f.splits.equals(1).raw) as (alone, several):
                        with alone:
                            write_out(k, shape.values, peak, total, sums, k.at(out, row * (4 * shape.rank)), None)
                        with several:
                            place = k.at(parts, row * record)
                            with k.range(0, rows.wide, 4 * k.lanes) as at:
                                k.store(k.load(k.vf, sums, at), place, at)
                            k.store(peak, place, rows.wide)
                            k.store(total, place, rows.wide + 4)

    nbytes = LatentRows.nbytes(shape, shape.each, target.lanes)
    return Kernel(f"latent_split_{shape.name}", shape.fields("splits:c parts:p"), body, scratch=nbytes)


def latent_tile(target: Any, shape: LatentShape) -> Kernel:
    """Attend for several tokens per sequence. An item is a tile of tokens and some heads; fields as those of
    `attention_tile`."""
    max_rows = TILE_TOKENS * shape.each

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        rows = LatentRows(k, shape, scratch, max_rows)
        with k.range(first, last) as item:
            head, tile = item % shape.chunks * shape.each, f.tiles - 1 - item // shape.chunks  # the longest first
            sequence, token, stop = locate_tile(k, f, tile)
            used = (stop - token) * shape.each
            end = k.load(i32, f.starts, sequence * 4 + 4).sext(i64)
            shift = k.load(i32, f.lengths, sequence * 4).sext(i64) - end  # position = token + shift
            rows.gather(f, token, head, used)
            rows.set_positions(token + shift, used)
            rows.reset(used)
            with k.range(0, stop + shift, SPLIT) as split:
                rows.start_split(used)
                split_stop = k.min(stop + shift, split + SPLIT)
                with k.range(split, split_stop, PAGE) as base:
                    rows.add_page(shape.page(k, f, sequence, base), base, k.min(split_stop - base, PAGE), used)
                rows.end_split(used)
            here = k.min(k.const(i64, shape.heads) - head, shape.each)
            with k.range(used) as row:
                number = head + k.min(row % shape.each, here - 1)  # repeated heads are written twice with equal values
                out = k.at(f.out, (token + row // shape.each) * f.out_stride + number * (4 * shape.rank))
                peak, total = k.load(f32, rows.merged, row * 8), k.load(f32, rows.merged, row * 8 + 4)
                write_out(k, shape.values, peak, total, k.at(rows.outs, row * rows.wide), out, None)

    nbytes = LatentRows.nbytes(shape, max_rows, target.lanes)
    return Kernel(f"latent_tile_{shape.name}", shape.fields("decoding:c tiles:c"), body, scratch=nbytes)


def store_latent(target: Any, pages: LatentPages, rank: int, turn: RotaryShape) -> Kernel:
    """Store rows: the first `rank` numbers are normed, the others rotated if a table is given. An item is one token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        for at in range(pages.width, pages.padded):
            k.store(k.const(f32, 0), scratch, 4 * at)
        with k.range(first, last) as token:
            row = k.at(f.x, token * f.x_stride)
            norm_head(k, row, scratch, f.weight, rank, f.eps)
            angles = turn.angles(k, f, token) if turn.rotary else {}
            turn.rotate(k, k.at(row, 4 * rank), k.at(scratch, 4 * rank), angles)
            slot = k.load(i32, f.slots, token * 4).sext(i64)
            pages.store(k, f.cache, f.page_bytes, slot, scratch)

    text = f"x:p x_stride:i weight:p {turn.fields if turn.rotary else ''} cache:p page_bytes:i slots:p eps:f"
    name = f"store_latent_{pages.name}_{rank}_{turn.name}"
    return Kernel(name, parse_fields(text), body, scratch=4 * pages.padded)
