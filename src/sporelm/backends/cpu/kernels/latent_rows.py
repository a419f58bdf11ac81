"""Attention of rows of queries to pages of latent rows: scores, softmax with a running maximum, mixed values.

Queries are transposed: a vector holds one number of `lanes` rows, and is multiplied by a number of a key that is
repeated in its lanes. So no sum crosses lanes, and the softmax runs along lanes too. A page is widened to f32 once for
all rows of an item. A score is summed in the order of a row's numbers, a mixed value in that of positions.
"""

from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import KernelField, parse_fields
from sporelm.backends.cpu.kernels.attention_page import MIN_SCORE, merge_split
from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.backends.cpu.kernels.latent_pages import LatentPages
from sporelm.backends.cpu.kernels.paged_attention import TILE_TOKENS
from sporelm.backends.cpu.targets.tiles import registers
from sporelm.ops.paged_attention import PAGE

SCORE_COLUMNS = 192  # numbers of keys that are summed at a time, so that a vector of queries stays in the nearest cache
MAX_ROWS = 64  # of an item, at most, unless one head of TILE_TOKENS has more


@dataclass(frozen=True)
class LatentShape:
    """The parameters that a kernel is specialised on.

    These are the pages, the numbers of a row that are values, all heads and the heads per item, and the width of a head
    in q, whose first numbers are the rotated ones.
    """

    pages: LatentPages
    rank: int
    heads: int
    each: int
    head_dim: int

    @property
    def name(self) -> str:
        return f"{self.pages.name}_{self.rank}_{self.heads}_{self.each}_{self.head_dim}"

    @property
    def chunks(self) -> int:
        """Return the number of items that share the heads."""
        return -(-self.heads // self.each)

    @property
    def values(self) -> KvPages:
        """Return the layout of sums of weighted values."""
        return KvPages(self.rank, "f32")

    def fields(self, more: str) -> tuple[KernelField, ...]:
        text = "latent:p latent_stride:i q:p q_stride:i cache:p page_bytes:i starts:p lengths:p table:p table_stride:i"
        return parse_fields(f"{text} scale:f out:p out_stride:i {more}")

    def page(self, k: Builder, f: Any, sequence: Val, position: Val) -> Val:
        """Return the address of the page that holds a position of a sequence."""
        number = k.load(i32, f.table, sequence * f.table_stride + position // PAGE * 4).sext(i64)
        return k.at(f.cache, number * f.page_bytes)


def latent_split_shape(pages: LatentPages, rank: int, heads: int, head_dim: int) -> LatentShape:
    """Return the shape of `latent_split`."""
    chunks = -(-heads // MAX_ROWS)
    return LatentShape(pages, rank, heads, -(-heads // chunks), head_dim)


def latent_tile_shape(pages: LatentPages, rank: int, heads: int, head_dim: int) -> LatentShape:
    """Return the shape of `latent_tile`."""
    return LatentShape(pages, rank, heads, min(heads, max(1, MAX_ROWS // TILE_TOKENS)), head_dim)


class LatentRows:
    """The rows of an item, in scratch memory.

    queries [width][rows] and scores, then weights, [PAGE][rows]; sums, and in tiles the merged splits, [rows][rank]; a
    widened page, [PAGE][width]; of each row its position, its maximum, the factor of a page, its sum of weights, and
    the merged maximum and sum.
    """

    def __init__(self, k: Builder, shape: LatentShape, scratch: Val, max_rows: int) -> None:
        self.k, self.shape, self.count = k, shape, _round_up(max_rows, k.lanes)
        self.line, self.wide, self.row = 4 * self.count, 4 * shape.values.padded, 4 * shape.pages.padded
        row = (self.line * shape.pages.padded, PAGE * self.row, PAGE * self.line)
        sizes = (*row, self.count * self.wide, self.count * self.wide, *[self.line] * 4)
        places = [scratch]
        for size in sizes:
            places.append(k.at(places[-1], size))
        self.queries, self.page, self.scores, self.sums, self.outs = places[:5]
        self.places, self.peaks, self.factors, self.totals, self.merged = places[5:]

    @staticmethod
    def nbytes(shape: LatentShape, max_rows: int, lanes: int) -> int:
        count = _round_up(max_rows, lanes)
        return 4 * (count + PAGE) * shape.pages.padded + 4 * count * (PAGE + 2 * shape.values.padded + 6)

    def gather(self, f: Any, token: Val, head: Val, used: Val) -> None:
        """Load `used` rows from head `head` of token `token` on, scaled; past the last one it is repeated."""
        k, shape = self.k, self.shape
        here = k.min(k.const(i64, shape.heads) - head, shape.each)
        rotary = shape.pages.width - shape.rank
        with k.range(0, used, k.lanes) as start:
            with k.range(k.lanes) as lane:
                row = k.min(start + lane, used - 1)
                number, place = head + k.min(row % shape.each, here - 1), token + row // shape.each
                out = k.at(self.page, lane * self.row)
                latent = k.at(f.latent, place * f.latent_stride + number * (4 * shape.rank))
                _copy_scaled(k, latent, out, shape.rank, f.scale)
                turned = k.at(f.q, place * f.q_stride + number * (4 * shape.head_dim))
                _copy_scaled(k, turned, k.at(out, 4 * shape.rank), rotary, f.scale)
            with k.range(0, shape.pages.width, k.lanes) as column:
                held = [k.load(k.vf, self.page, column * 4 + lane * self.row) for lane in range(k.lanes)]
                for which, vector in enumerate(transpose(k, held)):
                    k.store(vector, self.queries, (column + which) * self.line + start * 4)

    def set_positions(self, first: Val, used: Val) -> None:
        """Set the rows' positions; the first token's is `first`."""
        k = self.k
        with k.range(0, used, k.lanes) as row:
            index = k.splat(row.trunc(i32)) + k.iota(k.vi)
            k.store(index // self.shape.each + k.splat(first.trunc(i32)), self.places, row * 4)

    def start_split(self, used: Val) -> None:
        """Begin a new split."""
        k = self.k
        with k.range(0, used, k.lanes) as row:
            k.store(k.const(k.vf, MIN_SCORE), self.peaks, row * 4)
            k.store(k.const(k.vf, 0), self.totals, row * 4)
        self._clear(self.sums, used)

    def reset(self, used: Val) -> None:
        """Begin a new set of splits."""
        k = self.k
        with k.range(used) as row:
            k.store(k.const(f32, MIN_SCORE), self.merged, row * 8)
            k.store(k.const(f32, 0), self.merged, row * 8 + 4)
        self._clear(self.outs, used)

    def _clear(self, rows: Val, used: Val) -> None:
        """Write zeros in whole register tiles of rows."""
        k = self.k
        with k.range(_round_up_value(used, k.lanes) * self.wide // (4 * k.lanes)) as line:
            k.store(k.const(k.vf, 0), rows, line * (4 * k.lanes))

    def end_split(self, used: Val) -> None:
        """Merge the split into the rows' results."""
        k = self.k
        with k.range(used) as row:
            peak, total = k.load(f32, self.peaks, row * 4), k.load(f32, self.totals, row * 4)
            out, sums = k.at(self.outs, row * self.wide), k.at(self.sums, row * self.wide)
            merge_split(k, self.shape.values, k.at(self.merged, row * 8), out, peak, total, sums)

    def add_page(self, page: Val, base: Val, positions: Val, used: Val, following: Val | None = None) -> None:
        """Attend to a page with its first position at `base` and `positions` filled; `following`, the next page, is
        prefetched."""
        k, pages = self.k, self.shape.pages
        with k.range(positions) as position:
            pages.widen(k, k.at(page, position * pages.row_bytes), k.at(self.page, position * self.row))
        self.attend(base, positions, used, following)

    def attend(self, base: Val, positions: Val, used: Val, following: Val | None = None) -> None:
        """Attend to the widened page."""
        k, pages = self.k, self.shape.pages
        for start in range(0, pages.width, SCORE_COLUMNS):
            self._score(start, min(start + SCORE_COLUMNS, pages.width), positions, used)
        self._update_softmax(base, positions, used)
        whole = self.shape.values.padded // (4 * k.lanes) * (4 * k.lanes)
        with k.range(0, whole, 4 * k.lanes) as column:
            self._accumulate_values(column, 4, positions, used, following)
        if rest := (self.shape.values.padded - whole) // k.lanes:
            self._accumulate_values(k.index(whole), rest, positions, used, None if whole else following)

    def _score(self, start: int, stop: int, positions: Val, used: Val) -> None:
        """Add products of the numbers start .. stop to the scores, a tile of positions at a time."""
        k = self.k
        together = 16 if registers(k.target) == 32 else 8
        with k.range(0, used, k.lanes) as row, k.range(0, positions, together) as position:
            held = k.at(self.scores, position * self.line + row * 4)
            sums = [k.zero(k.vf) for _ in range(together)]
            keys, queries = k.at(self.page, position * self.row), k.at(self.queries, row * 4)
            with k.range(start, stop) as column:
                x, line = k.load(k.vf, queries, column * self.line), k.opaque(k.at(keys, column * 4))
                for number, total in enumerate(sums):
                    total.set(k.fma(x, k.broadcast(k.vf, line, number * self.row), total.value))
            for number, total in enumerate(sums):
                before = k.load(k.vf, held, number * self.line) if start else None
                k.store(total.value if before is None else before + total.value, held, number * self.line)

    def _update_softmax(self, base: Val, positions: Val, used: Val) -> None:
        """Turn scores into weights, and update the maximum, factor and sum of the rows."""
        k = self.k
        with k.range(0, used, k.lanes) as row:
            places, held = k.load(k.vi, self.places, row * 4), k.load(k.vf, self.peaks, row * 4)

            def score(position: Val) -> tuple[Val, Val]:
                """Return which rows see a position, and their scores."""
                visible = k.splat((base + position).trunc(i32)) <= places
                return visible, k.load(k.vf, self.scores, position * self.line + row * 4)

            top = k.var(held)
            with k.range(positions) as position:
                visible, found = score(position)
                top.set(k.fmax(k.select(visible, found, k.const(k.vf, MIN_SCORE)), top.value))
            peak = top.value
            factor = k.exp(held - peak)
            total = k.var(k.load(k.vf, self.totals, row * 4) * factor)
            with k.range(positions) as position:
                visible, found = score(position)
                weight = k.select(visible, k.exp(found - peak), k.const(k.vf, 0))
                k.store(weight, self.scores, position * self.line + row * 4)
                total.set(total.value + weight)
            for value, place in ((peak, self.peaks), (factor, self.factors), (total.value, self.totals)):
                k.store(value, place, row * 4)

    def _accumulate_values(self, column: Val, vectors: int, positions: Val, used: Val, following: Val | None) -> None:
        """Add weighted values of a few vectors of columns to the sums, a tile of rows at a time."""
        k = self.k
        blocks = max(1, self.shape.values.padded // (4 * k.lanes))
        share = -(-self.shape.pages.row_bytes // blocks)  # of each row of the following page, prefetched in turn
        together = 4 if registers(k.target) == 32 else 2
        parts = [4 * k.lanes * part for part in range(vectors)]
        with k.range(0, used, together) as row:
            held = [k.at(self.sums, (row + n) * self.wide + column * 4) for n in range(together)]
            factors = [k.broadcast(k.vf, self.factors, (row + n) * 4) for n in range(together)]
            sums = [
                [k.var(k.load(k.vf, at, part) * factor) for part in parts]
                for at, factor in zip(held, factors, strict=True)
            ]
            values, weights = k.at(self.page, column * 4), k.at(self.scores, row * 4)
            with k.range(positions) as position:
                line = k.opaque(k.at(values, position * self.row))
                found = [k.load(k.vf, line, part) for part in parts]
                at = k.opaque(k.at(weights, position * self.line))
                if following is not None:
                    ahead = k.at(following, position * self.shape.pages.row_bytes + column // (4 * k.lanes) * share)
                    for place in range(0, share, 64):
                        k.prefetch(ahead, place)
                for number, totals in enumerate(sums):
                    weight = k.broadcast(k.vf, at, 4 * number)
                    for total, value in zip(totals, found, strict=True):
                        total.set(k.fma(weight, value, total.value))
            for at, totals in zip(held, sums, strict=True):
                for part, total in zip(parts, totals, strict=True):
                    k.store(total.value, at, part)


def transpose(k: Builder, rows: list[Val]) -> list[Val]:
    """Return the transpose of as many vectors as each has lanes."""
    count, block = len(rows), len(rows) // 2
    while block:
        low = [lane + (count - block if lane & block else 0) for lane in range(count)]
        high = [lane + (count if lane & block else block) for lane in range(count)]
        turned = list(rows)
        for first in (number for number in range(count) if not number & block):
            pair = rows[first], rows[first + block]
            turned[first], turned[first + block] = k.shuffle(*pair, low), k.shuffle(*pair, high)
        rows, block = turned, block // 2
    return rows


def _copy_scaled(k: Builder, source: Val, out: Val, count: int, scale: Val) -> None:
    """Copy `count` numbers, multiplied."""
    whole = count // k.lanes * k.lanes
    with k.range(0, whole, k.lanes) as at:
        k.store(k.load(k.vf, source, at * 4) * k.splat(scale), out, at * 4)
    for rest in range(whole, count):
        k.store(k.load(f32, source, 4 * rest) * scale, out, 4 * rest)


def _round_up(count: int, lanes: int) -> int:
    return -(-count // lanes) * lanes


def _round_up_value(count: Val, lanes: int) -> Val:
    return (count + (lanes - 1)) // lanes * lanes
