"""The top-k indexer: scores of all positions for a row, and the slots of the highest scores.

A vector holds one number of `lanes` heads, and is multiplied by a key's number in all of them, as in
kernels/latent_rows.py. Weighted scores of heads are summed in lanes, then by halves. Scores are stored as integers in
the order of floats. The threshold is found bit by bit, which is exact for any numbers, and takes 32 passes over the
scores, each about a hundredth of one product. Rows that see at most `k` positions are not scored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import KernelField, parse_fields
from sporelm.backends.cpu.kernels.expert_routing import order_key
from sporelm.backends.cpu.kernels.latent_pages import LatentPages
from sporelm.backends.cpu.kernels.latent_rows import transpose
from sporelm.backends.cpu.targets.tiles import registers
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.topk_indexer import NO_SLOT

MIN_KEY = -0x80000000  # less than the key of any float


POSITIONS_PER_ITEM = 256  # positions of an item of `index_scores`


@dataclass(frozen=True)
class IndexerShape:
    """The parameters that kernels are specialised on: the pages of keys, and the heads that score them."""

    pages: LatentPages
    heads: int

    @property
    def name(self) -> str:
        return f"{self.pages.name}_{self.heads}"

    def fields(self, more: str) -> tuple[KernelField, ...]:
        text = "q:p q_stride:i weights:p weights_stride:i cache:p page_bytes:i starts:p lengths:p table:p"
        return parse_fields(f"{text} table_stride:i k:i {more}")


def index_scores(target: Any, index: IndexerShape) -> Kernel:
    """Score positions. An item is POSITIONS_PER_ITEM positions of one row; the keys of a row are contiguous in
    `keys`."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        scorer = IndexScorer(k, index, scratch)
        with k.range(first, last) as item:
            token, start = item // f.spans, item % f.spans * POSITIONS_PER_ITEM
            table, count = _visible_positions(k, f, token)
            with k.when(k.both(count > f.k, lambda: start < count)):
                scorer.gather(f, token)
                keys = k.at(f.keys, token * f.keys_stride)
                scorer.score(f, table, start, k.min(count, start + POSITIONS_PER_ITEM), count, keys)

    return Kernel(
        f"index_scores_{index.name}",
        index.fields("keys:p keys_stride:i spans:i"),
        body,
        scratch=IndexScorer.nbytes(index, target.lanes),
    )


def select_slots(target: Any, index: IndexerShape) -> Kernel:
    """Select slots by the scores of `index_scores`. An item is one row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            table, count = _visible_positions(k, f, token)
            _select(k, f, k.at(f.keys, token * f.keys_stride), table, count, k.at(f.out, token * f.out_stride))

    return Kernel(f"topk_indexer_{index.name}", index.fields("keys:p keys_stride:i out:p out_stride:i"), body)


def score_and_select(target: Any, index: IndexerShape, positions: int) -> Kernel:
    """Score and select. An item is one row of at most `positions` positions, whose keys stay in scratch memory."""
    own = IndexScorer.nbytes(index, target.lanes)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        scorer, keys = IndexScorer(k, index, scratch), k.at(scratch, own)
        with k.range(first, last) as token:
            table, count = _visible_positions(k, f, token)
            with k.when(count > f.k):
                scorer.gather(f, token)
                scorer.score(f, table, k.index(0), count, count, keys)
            _select(k, f, keys, table, count, k.at(f.out, token * f.out_stride))

    name = f"score_and_choose_{index.name}"
    return Kernel(name, index.fields("out:p out_stride:i"), body, scratch=own + 4 * positions)


class IndexScorer:
    """Queries of a row in scratch memory, [width][heads], the heads' weights, and a widened page, [PAGE][width]."""

    def __init__(self, k: Builder, index: IndexerShape, scratch: Val) -> None:
        self.k, self.index, self.count = k, index, _round_up(index.heads, k.lanes)
        self.line, self.row = 4 * self.count, 4 * index.pages.padded
        self.queries, self.weights = scratch, k.at(scratch, self.line * index.pages.padded)
        self.page = k.at(self.weights, self.line)

    @staticmethod
    def nbytes(index: IndexerShape, lanes: int) -> int:
        count = _round_up(index.heads, lanes)
        return 4 * (count * (index.pages.padded + 1) + PAGE * index.pages.padded)

    def gather(self, f: Any, token: Val) -> None:
        """Load the queries of a row. Past the last head it is repeated, and not counted."""
        k, width = self.k, self.index.pages.width
        whole = width // k.lanes * k.lanes
        with k.range(0, self.count, k.lanes) as start:
            with k.range(k.lanes) as lane:
                head = k.min(start + lane, self.index.heads - 1)
                source, out = k.at(f.q, token * f.q_stride + head * (4 * width)), k.at(self.page, lane * self.row)
                with k.range(0, whole, k.lanes) as at:
                    k.store(k.load(k.vf, source, at * 4), out, at * 4)
                for rest in range(whole, width):
                    k.store(k.load(f32, source, 4 * rest), out, 4 * rest)
            with k.range(0, width, k.lanes) as column:
                held = [k.load(k.vf, self.page, column * 4 + lane * self.row) for lane in range(k.lanes)]
                for which, vector in enumerate(transpose(k, held)):
                    k.store(vector, self.queries, (column + which) * self.line + start * 4)
            k.store(k.load(k.vf, f.weights, token * f.weights_stride + start * 4), self.weights, start * 4)

    def _valid_lanes(self, start: Val) -> Val:
        """Return which lanes from head `start` on are heads."""
        k = self.k
        return k.iota(k.vi) < k.splat((k.const(i64, self.index.heads) - start).trunc(i32))

    def score(self, f: Any, table: Val, start: Val, stop: Val, count: Val, keys: Val) -> None:
        """Write keys of the positions start .. stop of a row that sees `count`; in the last vector, MIN_KEY past
        those."""
        k, pages = self.k, self.index.pages
        with k.range(start, stop, PAGE) as base:
            number = k.load(i32, table, base // PAGE * 4).sext(i64)
            page, positions = k.at(f.cache, number * f.page_bytes), k.min(stop - base, PAGE)
            with k.range(positions) as position:
                pages.widen(k, k.at(page, position * pages.row_bytes), k.at(self.page, position * self.row))
            together = 16 if registers(k.target) == 32 else 8
            with k.range(0, positions, together) as position:
                for which, total in enumerate(self._totals(position, together)):
                    place = base + position + which
                    key = k.select(place < count, order_key(k, k.sum(total)), k.const(i32, MIN_KEY))
                    k.store(key, keys, place * 4)

    def _totals(self, position: Val, together: int) -> list[Val]:
        """Return the scores of a tile of positions: above zero per head, weighted, and summed per lane."""
        k = self.k
        totals = [k.zero(k.vf) for _ in range(together)]
        held = k.at(self.page, position * self.row)
        with k.range(0, self.count, k.lanes) as head:
            sums, queries = [k.zero(k.vf) for _ in range(together)], k.at(self.queries, head * 4)
            with k.range(self.index.pages.width) as column:
                x, line = k.load(k.vf, queries, column * self.line), k.opaque(k.at(held, column * 4))
                for number, total in enumerate(sums):
                    total.set(k.fma(x, k.broadcast(k.vf, line, number * self.row), total.value))
            weight, zero, there = k.load(k.vf, self.weights, head * 4), k.const(k.vf, 0), self._valid_lanes(head)
            for total, found in zip(totals, sums, strict=True):
                above = k.select(found.value < zero, zero, found.value)
                total.set(k.select(there, k.fma(weight, above, total.value), total.value))
        return [total.value for total in totals]


def _visible_positions(k: Builder, f: Any, token: Val) -> tuple[Val, Val]:
    """Return the page table of a row's sequence, and how many positions the row sees."""
    sequence = k.zero(i64)
    with k.loop_while(lambda: k.load(i32, f.starts, sequence.value * 4 + 4).sext(i64) <= token):
        sequence.set(sequence.value + 1)
    end = k.load(i32, f.starts, sequence.value * 4 + 4).sext(i64)
    count = k.load(i32, f.lengths, sequence.value * 4).sext(i64) - (end - 1 - token)
    return k.at(f.table, sequence.value * f.table_stride), count


def _select(k: Builder, f: Any, keys: Val, table: Val, count: Val, out: Val) -> None:
    """Write the slots of the `k` greatest of `count` keys, the first among equals; if there are fewer, all and
    NO_SLOT."""
    with k.ir.if_else((count <= f.k).raw) as (few, many):
        with few:
            with k.range(count) as place:
                k.store(_slot_at(k, table, place), out, place * 4)
            with k.range(count, f.k) as place:
                k.store(k.const(i32, NO_SLOT), out, place * 4)
        with many:
            least = _find_threshold(k, keys, count, f.k)
            ties = k.var(f.k - _count_keys(k, keys, count, lambda key: key > k.splat(least)))
            written = k.zero(i64)
            with k.range(count) as place:
                key = k.load(i32, keys, place * 4)
                with k.when(key >= least):
                    tied = key.equals(least)
                    with k.when(k.select(tied, ties.value, k.index(1)) > 0):
                        k.store(_slot_at(k, table, place), out, written.value * 4)
                        written.set(written.value + 1)
                    ties.set(ties.value - k.select(tied, k.index(1), k.index(0)))


def _slot_at(k: Builder, table: Val, place: Val) -> Val:
    """Return the slot of a position."""
    return k.load(i32, table, place // PAGE * 4) * PAGE + (place % PAGE).trunc(i32)


def _find_threshold(k: Builder, keys: Val, count: Val, wanted: Val) -> Val:
    """Return the greatest i32 such that at least `wanted` keys are not less, bit by bit from the highest, which is
    inverted."""
    found, bit = k.var(k.const(i32, 0)), k.var(k.const(i32, MIN_KEY))
    with k.range(32):
        tried = found.value | bit.value
        floor = k.splat(tried ^ MIN_KEY)
        enough = _count_keys(k, keys, count, lambda key: key >= floor) >= wanted
        found.set(k.select(enough, tried, found.value))
        bit.set(bit.value >> 1)
    return found.value ^ MIN_KEY


def _count_keys(k: Builder, keys: Val, count: Val, test: Callable[[Val], Val]) -> Val:
    """Count the keys that pass, i64."""
    total, one, none = k.zero(k.vi), k.const(k.vi, 1), k.const(k.vi, 0)
    with k.range(0, count, k.lanes) as at:
        total.set(total.value + k.select(test(k.load(k.vi, keys, at * 4)), one, none))
    return k.fold(total.value, lambda a, b: a + b).sext(i64)


def _round_up(count: int, lanes: int) -> int:
    return -(-count // lanes) * lanes


def store_rows(target: Any, pages: LatentPages) -> Kernel:
    """Write rows to their slots. An item is one token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        whole = pages.width // k.lanes * k.lanes
        for column in range(pages.width, pages.padded):
            k.store(k.const(f32, 0), scratch, 4 * column)
        with k.range(first, last) as token:
            row = k.at(f.x, token * f.x_stride)
            with k.range(0, whole, k.lanes) as at:
                k.store(k.load(k.vf, row, at * 4), scratch, at * 4)
            for rest in range(whole, pages.width):
                k.store(k.load(f32, row, 4 * rest), scratch, 4 * rest)
            slot = k.load(i32, f.slots, token * 4).sext(i64)
            pages.store(k, f.cache, f.page_bytes, slot, scratch)

    text = "x:p x_stride:i cache:p page_bytes:i slots:p"
    return Kernel(f"store_rows_{pages.name}", parse_fields(text), body, scratch=4 * pages.padded)
