"""Attention over pages: softmax kept running over pages of 64, split at fixed positions, merged in order.

Every row (one head of one token) goes through the same arithmetic in both kernels: pages of a split in order with a
running maximum (Milakov and Gimelshein 2018), splits of SPLIT positions merged in order (Flash-Decoding). So
neither the tile, nor the batch, nor the thread that computed a split can change a result.
"""

from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import Field, fields
from sporelm.backends.cpu.kernels.pages import Pages
from sporelm.ops.attention import PAGE

SPLIT = 256  # positions
TILE_TOKENS = 16  # tokens of one sequence that share a pass over its pages
LOWEST = -1e30  # below every score, yet finite: differences of it are no NaN


@dataclass(frozen=True)
class Heads:
    """What an attention kernel is specialised on."""

    pages: Pages
    group: int  # query heads that share a kv head

    @property
    def name(self) -> str:
        return f"{self.pages.name}_{self.group}"

    def fields(self, more: str) -> tuple[Field, ...]:
        text = (
            "q:p q_stride:i cache:p page_bytes:i starts:p lengths:p table:p table_stride:i scale:f window:i kv_heads:i "
        )
        return fields(text + more)


class Rows:
    """Running state of some rows in scratch memory: scores [rows][64], then sums [rows][padded], totals, and maxima."""

    def __init__(self, k: Builder, heads: Heads, scratch: Val, count: int) -> None:
        self.k, self.pages, self.count = k, heads.pages, count
        self.wide = 4 * self.pages.padded
        self.scores = scratch
        self.sums = k.at(self.scores, count * 4 * PAGE)
        self.outs = k.at(self.sums, count * self.wide)
        self.totals = k.at(self.outs, count * self.wide)  # vectors: the running sum of weights, lane by lane
        self.numbers = k.at(self.totals, count * 64)  # f32: maximum, factor of this page, merged maximum, merged sum

    @staticmethod
    def nbytes(heads: Heads, count: int) -> int:
        return count * (4 * PAGE + 2 * 4 * heads.pages.padded + 64 + 16)

    def number(self, row: int | Val, which: int) -> Val:
        return self.k.at(self.numbers, row * 16 + 4 * which)

    def start_split(self) -> None:
        """Forget the pages seen: a new split begins."""
        k = self.k
        with k.range(self.count) as row:
            k.store(k.const(f32, LOWEST), self.number(row, 0))
            k.store(k.const(k.vf, 0), self.totals, row * 64)
            for at in range(0, self.wide, 4 * k.lanes):
                k.store(k.const(k.vf, 0), self.sums, row * self.wide + at)

    def start(self) -> None:
        """Forget everything: a new set of rows begins."""
        k = self.k
        with k.range(self.count) as row:
            k.store(k.const(f32, LOWEST), self.number(row, 2))
            k.store(k.const(f32, 0), self.number(row, 3))
            for at in range(0, self.wide, 4 * k.lanes):
                k.store(k.const(k.vf, 0), self.outs, row * self.wide + at)

    def end_split(self) -> None:
        """Merge the split into what the rows have."""
        with self.k.range(self.count) as row:
            total = self.k.sum(self.k.load(self.k.vf, self.totals, row * 64))
            peak = self.k.load(f32, self.number(row, 0))
            out, sums = self.k.at(self.outs, row * self.wide), self.k.at(self.sums, row * self.wide)
            merge(self.k, self.pages, self.number(row, 2), out, peak, total, sums)


def merge(k: Builder, pages: Pages, numbers: Val, out: Val, peak: Val, total: Val, sums: Val) -> None:
    """One split (its maximum, sum of weights, weighted values) into a row's merged (maximum, sum) and values."""
    held_peak, held_total = k.load(f32, numbers), k.load(f32, numbers, 4)
    new = k.fmax(held_peak, peak)
    old_factor, factor = k.exp(held_peak - new), k.exp(peak - new)
    k.store(new, numbers)
    k.store(k.fma(total, factor, held_total * old_factor), numbers, 4)
    old_wide, wide = k.splat(old_factor), k.splat(factor)
    for at in range(0, 4 * pages.padded, 4 * k.lanes):
        k.store(k.fma(k.load(k.vf, sums, at), wide, k.load(k.vf, out, at) * old_wide), out, at)


def write_out(k: Builder, pages: Pages, total: Val, sums: Val, out: Val) -> None:
    """Divide by the sum of weights and write head_dim columns."""
    inverse = k.const(f32, 1.0) / total
    whole = pages.head_dim // k.lanes * k.lanes
    for at in range(0, whole, k.lanes):
        k.store(k.load(k.vf, sums, 4 * at) * k.splat(inverse), out, 4 * at)
    for at in range(whole, pages.head_dim):
        k.store(k.load(f32, sums, 4 * at) * inverse, out, 4 * at)


def add_page(
    k: Builder,
    rows: Rows,
    first: int | Val,
    count: int,
    q: Val,
    q_stride: int,
    keys: Val,
    values: Val,
    page: Pages,
    span: Any,
    following: Val | None = None,
) -> None:
    """Rows `first`..`first + count` see one page: scores, softmax, weighted values.

    `q` is the address of row `first`'s query; `page` says how keys and values lie; `span` gives the scale and which
    positions a row sees. `following`, if given, is where the keys read next lie: while keys are read the values are
    asked for, while values are read the following keys.
    """
    columns = 4 * k.lanes  # positions, then dimensions, whose sums are held in registers at once
    for start in range(0, PAGE, columns):
        parts = [start + k.lanes * c for c in range(4)]
        ahead = values if following is not None and start == 0 else None
        if len(parts) * k.lanes < PAGE:
            _scores(k, rows, first, count, q, q_stride, keys, page, parts, ahead)
            continue
        with k.ir.if_else((span.positions > PAGE // 2).raw) as (whole, half):  # the last page is often half empty
            with whole:
                _scores(k, rows, first, count, q, q_stride, keys, page, parts, ahead)
            with half:
                _scores(k, rows, first, count, q, q_stride, keys, page, parts[:2], ahead)
    for r in range(count):
        _softmax(k, rows, first + r, span)
    for start in range(0, page.padded, columns):
        parts = [start + k.lanes * c for c in range(4) if start + k.lanes * c < page.padded]
        places = [k.at(rows.sums, (first + r) * rows.wide) for r in range(count)]
        sums = []
        for r in range(count):
            factor = k.splat(k.load(f32, rows.number(first + r, 1)))
            sums.append([k.var(k.load(k.vf, places[r], 4 * part) * factor) for part in parts])
        weights = k.at(rows.scores, first * (4 * PAGE))
        with k.range(span.positions) as p:
            line = k.opaque(k.at(values, p * (page.padded * page.size)))
            if following is not None and start == 0:
                _fetch(k, k.at(following, p * (page.padded * page.size)), page.padded * page.size)
            vectors = [page.load(k, line, part * page.size) for part in parts]
            at = k.opaque(k.at(weights, p * 4))
            for r in range(count):
                x = k.broadcast(k.vf, at, r * 4 * PAGE)
                for c, vector in enumerate(vectors):
                    sums[r][c].set(k.fma(x, vector, sums[r][c].value))
        for r in range(count):
            for c, part in enumerate(parts):
                k.store(sums[r][c].value, places[r], 4 * part)


def _scores(
    k: Builder,
    rows: Rows,
    first: int | Val,
    count: int,
    q: Val,
    q_stride: int,
    keys: Val,
    page: Pages,
    parts: list[int],
    ahead: Val | None,
) -> None:
    """Scores of some rows at the positions `parts` (vectors of them) of a page; `ahead` is read into the cache."""
    sums = [[k.zero(k.vf) for _ in parts] for _ in range(count)]
    with k.range(page.head_dim) as d:
        line = k.opaque(k.at(keys, d * (PAGE * page.size)))
        if ahead is not None:
            _fetch(k, k.at(ahead, d * (PAGE * page.size)), PAGE * page.size)
        vectors = [page.load(k, line, part * page.size) for part in parts]
        at = k.opaque(k.at(q, d * 4))
        for r in range(count):
            x = k.broadcast(k.vf, at, r * q_stride)
            for c, vector in enumerate(vectors):
                sums[r][c].set(k.fma(x, vector, sums[r][c].value))
    for r in range(count):
        for c, part in enumerate(parts):
            k.store(sums[r][c].value, k.at(rows.scores, (first + r) * (4 * PAGE)), 4 * part)


def _fetch(k: Builder, start: Val, size: int) -> None:
    for at in range(0, size, 64):
        k.prefetch(start, at)


@dataclass(frozen=True)
class Span:
    """Which positions of a page (its first at `base`, `positions` of them filled) rows see: low(r) <= p <= high(r)."""

    base: Val  # i64
    positions: Val  # i64, at most 64
    scale: Val  # f32
    window: Val  # i64
    place: Any  # row -> its position, i64


def _softmax(k: Builder, rows: Rows, row: int | Val, span: Span) -> None:
    """Scores of one row become weights; maximum, factor and sum of the row move on."""
    scores = k.at(rows.scores, row * (4 * PAGE))
    here = span.place(row)
    high = k.splat(k.min(here - span.base, PAGE).trunc(i32))
    low = k.splat(k.max(here - span.window - span.base, -1).trunc(i32))
    lanes = range(0, PAGE, k.lanes)
    seen, values = [], []
    for at in lanes:
        index = k.iota(k.vi) + at
        visible = Val(k, k.ir.and_((index <= high).raw, (index > low).raw))
        seen.append(visible)
        scaled = k.load(k.vf, scores, 4 * at) * k.splat(span.scale)
        values.append(k.select(visible, scaled, k.const(k.vf, LOWEST)))
    top = values[0]
    for value in values[1:]:
        top = k.fmax(value, top)
    held = k.load(f32, rows.number(row, 0))
    peak = k.fmax(k.fold(top, k.fmax), held)
    factor = k.exp(held - peak)
    k.store(peak, rows.number(row, 0))
    k.store(factor, rows.number(row, 1))
    total = k.load(k.vf, rows.totals, row * 64) * k.splat(factor)
    weights = []
    for at, visible, value in zip(lanes, seen, values, strict=True):
        weight = k.select(visible, k.exp(value - k.splat(peak)), k.const(k.vf, 0))
        k.store(weight, scores, 4 * at)
        weights.append(weight)
    while len(weights) > 1:
        weights = [a + b for a, b in zip(weights[::2], weights[1::2], strict=True)]
    k.store(total + weights[0], rows.totals, row * 64)


def chunks_of(group: int, largest: int) -> list[tuple[int, int]]:
    """(first, count) of row groups that fit the registers."""
    return [(first, min(largest, group - first)) for first in range(0, group, largest)]


def place_of(k: Builder, f: Any, item: Val) -> tuple[Val, Val, Val]:
    """Split, kv head and sequence of an item of `attention_split`."""
    rest = item // f.splits
    return item % f.splits, rest % f.kv_heads, rest // f.kv_heads


def keys_at(k: Builder, f: Any, pages: Pages, sequence: Val, head: Val, position: Val) -> Val:
    """Address of a head's keys in the page that holds a position of a sequence."""
    number = k.load(i32, f.table, sequence * f.table_stride + position // PAGE * 4).sext(i64)
    return k.at(f.cache, number * f.page_bytes + head * (2 * pages.half_bytes))


def first_keys(k: Builder, f: Any, pages: Pages, item: Val) -> Val:
    """Address of the keys with which an item begins (about: without regard to a window)."""
    split, head, sequence = place_of(k, f, item)
    length = k.load(i32, f.lengths, sequence * 4).sext(i64)
    return keys_at(k, f, pages, sequence, head, k.min(split * SPLIT, length - 1))


def attention_split(target: Any, heads: Heads) -> Kernel:
    """One token a sequence. An item is one kv head and one split of one sequence.

    Results go to `parts`, a lone split's to `out`.
    parts: f32 [sequence][kv_head][split][group][padded + 16]: weighted values, then maximum and sum of weights.
    """
    pages, group = heads.pages, heads.group
    record = 4 * (pages.padded + 16)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        rows = Rows(k, heads, scratch, group)
        with k.range(first, last) as item:
            split, head, sequence = place_of(k, f, item)
            length = k.load(i32, f.lengths, sequence * 4).sext(i64)
            lowest = k.max(length - f.window, 0)
            start, stop = split * SPLIT, k.min(length, split * SPLIT + SPLIT)
            out = k.at(f.parts, item * (group * record))
            rows.start_split()
            token = k.load(i32, f.starts, sequence * 4).sext(i64)
            q = k.at(f.q, token * f.q_stride + head * (4 * pages.head_dim * group))
            next_item = first_keys(k, f, pages, k.min(item + 1, last - 1))
            with k.when(stop > lowest), k.range(k.max(start, lowest // PAGE * PAGE), stop, PAGE) as base:
                keys = keys_at(k, f, pages, sequence, head, base)
                next_page = keys_at(k, f, pages, sequence, head, k.min(base + PAGE, stop - 1))
                following = k.select(base + PAGE < stop, next_page, next_item)
                span = Span(base, k.min(stop - base, PAGE), f.scale, f.window, lambda row: length - 1)
                for chunk, count in chunks_of(group, target.tiles.attention_rows):
                    here = k.at(q, chunk * 4 * pages.head_dim)
                    values = k.at(keys, pages.half_bytes)
                    add_page(k, rows, chunk, count, here, 4 * pages.head_dim, keys, values, pages, span, following)
            direct = k.at(f.out, token * f.out_stride + head * (4 * pages.head_dim * group))
            with k.ir.if_else(f.splits.equals(1).raw) as (alone, several):
                with alone:  # nothing to merge
                    for row in range(group):
                        total = k.sum(k.load(k.vf, rows.totals, row * 64))
                        write_out(
                            k, pages, total, k.at(rows.sums, row * rows.wide), k.at(direct, row * 4 * pages.head_dim)
                        )
                with several:
                    for row in range(group):
                        _keep(k, rows, row, k.at(out, row * record))

    return Kernel(
        f"attention_split_{heads.name}",
        heads.fields("splits:c parts:p out:p out_stride:i"),
        body,
        scratch=Rows.nbytes(heads, group),
    )


def _keep(k: Builder, rows: Rows, row: int, place: Val) -> None:
    """A row's weighted values, maximum and sum of weights, for `attention_merge`."""
    for at in range(0, rows.wide, 4 * k.lanes):
        k.store(k.load(k.vf, rows.sums, row * rows.wide + at), place, at)
    k.store(k.load(f32, rows.number(row, 0)), place, rows.wide)
    k.store(k.sum(k.load(k.vf, rows.totals, row * 64)), place, rows.wide + 4)


def attention_merge(target: Any, heads: Heads) -> Kernel:
    """What `attention_split` left, merged. An item is one query head of one sequence."""
    pages, group = heads.pages, heads.group
    record = 4 * (pages.padded + 16)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            count = f.kv_heads * group
            sequence, head = item // count, item % count
            k.store(k.const(f32, LOWEST), scratch)
            k.store(k.const(f32, 0), scratch, 4)
            sums = k.at(scratch, 64)
            for at in range(0, 4 * pages.padded, 4 * k.lanes):
                k.store(k.const(k.vf, 0), sums, at)
            length = k.load(i32, f.lengths, sequence * 4).sext(i64)
            base = (sequence * f.kv_heads + head // group) * f.splits
            with k.range((length + (SPLIT - 1)) // SPLIT) as split:
                place = k.at(f.parts, ((base + split) * group + head % group) * record)
                peak, total = k.load(f32, place, 4 * pages.padded), k.load(f32, place, 4 * pages.padded + 4)
                merge(k, pages, scratch, sums, peak, total, place)
            token = k.load(i32, f.starts, sequence * 4).sext(i64)
            out = k.at(f.out, token * f.out_stride + head * (4 * pages.head_dim))
            write_out(k, pages, k.load(f32, scratch, 4), sums, out)

    text = "parts:p lengths:p starts:p splits:c kv_heads:i out:p out_stride:i"
    return Kernel(f"attention_merge_{heads.name}", fields(text), body, scratch=64 + 4 * pages.padded)
