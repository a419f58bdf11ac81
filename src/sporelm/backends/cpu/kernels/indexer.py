"""The lightning indexer: scores of all positions for a row, and the slots of the highest ones.

A vector holds one number of as many heads as it has lanes, and meets a key's number in all of them, as in
kernels/latent_rows.py. Weighed scores of heads are summed in lanes, then by halves. Scores are kept as integers in the
order of floats; the least of those that count is found bit by bit, which is exact whatever the numbers are, and costs
32 passes over them, each a hundredth of one product. Rows that see no more than `k` positions are not scored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import Field, fields
from sporelm.backends.cpu.kernels.latent_pages import LatentPages
from sporelm.backends.cpu.kernels.latent_rows import transposed
from sporelm.backends.cpu.kernels.routing import order_key
from sporelm.backends.cpu.tiles import registers
from sporelm.ops.attention import PAGE
from sporelm.ops.sparse import NONE

LEAST = -0x80000000  # less than the key of any float
SPAN = 256  # positions of an item of `index_scores`


@dataclass(frozen=True)
class Index:
    """What kernels are specialised on: the pages of keys, and the heads that score them."""

    pages: LatentPages
    heads: int

    @property
    def name(self) -> str:
        return f"{self.pages.name}_{self.heads}"

    def fields(self, more: str) -> tuple[Field, ...]:
        text = "q:p q_stride:i weights:p weights_stride:i cache:p page_bytes:i starts:p lengths:p table:p"
        return fields(f"{text} table_stride:i k:i {more}")


def index_scores(target: Any, index: Index) -> Kernel:
    """An item is SPAN positions of one row; keys go to `keys`, those of a row one after the other."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        scorer = Scorer(k, index, scratch)
        with k.range(first, last) as item:
            token, start = item // f.spans, item % f.spans * SPAN
            table, count = _seen(k, f, token)
            with k.when(k.both(count > f.k, lambda: start < count)):
                scorer.gather(f, token)
                keys = k.at(f.keys, token * f.keys_stride)
                scorer.score(f, table, start, k.min(count, start + SPAN), count, keys)

    return Kernel(
        f"index_scores_{index.name}",
        index.fields("keys:p keys_stride:i spans:i"),
        body,
        scratch=Scorer.nbytes(index, target.lanes),
    )


def choose_slots(target: Any, index: Index) -> Kernel:
    """What `index_scores` left, chosen from. An item is one row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            table, count = _seen(k, f, token)
            _choose(k, f, k.at(f.keys, token * f.keys_stride), table, count, k.at(f.out, token * f.out_stride))

    return Kernel(f"choose_slots_{index.name}", index.fields("keys:p keys_stride:i out:p out_stride:i"), body)


def score_and_choose(target: Any, index: Index, positions: int) -> Kernel:
    """Both. An item is one row, of at most so many positions; its keys stay in scratch memory."""
    own = Scorer.nbytes(index, target.lanes)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        scorer, keys = Scorer(k, index, scratch), k.at(scratch, own)
        with k.range(first, last) as token:
            table, count = _seen(k, f, token)
            with k.when(count > f.k):
                scorer.gather(f, token)
                scorer.score(f, table, k.index(0), count, count, keys)
            _choose(k, f, keys, table, count, k.at(f.out, token * f.out_stride))

    name = f"score_and_choose_{index.name}"
    return Kernel(name, index.fields("out:p out_stride:i"), body, scratch=own + 4 * positions)


class Scorer:
    """Queries of a row in scratch memory, [width][heads], the heads' weights, and a page widened, [PAGE][width]."""

    def __init__(self, k: Builder, index: Index, scratch: Val) -> None:
        self.k, self.index, self.count = k, index, _rounded(index.heads, k.lanes)
        self.line, self.row = 4 * self.count, 4 * index.pages.padded
        self.queries, self.weights = scratch, k.at(scratch, self.line * index.pages.padded)
        self.page = k.at(self.weights, self.line)

    @staticmethod
    def nbytes(index: Index, lanes: int) -> int:
        count = _rounded(index.heads, lanes)
        return 4 * (count * (index.pages.padded + 1) + PAGE * index.pages.padded)

    def gather(self, f: Any, token: Val) -> None:
        """The queries of a row; past the last head it is repeated, and not counted."""
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
                for which, vector in enumerate(transposed(k, held)):
                    k.store(vector, self.queries, (column + which) * self.line + start * 4)
            k.store(k.load(k.vf, f.weights, token * f.weights_stride + start * 4), self.weights, start * 4)

    def _there(self, start: Val) -> Val:
        """Which lanes from head `start` on are heads."""
        k = self.k
        return k.iota(k.vi) < k.splat((k.const(i64, self.index.heads) - start).trunc(i32))

    def score(self, f: Any, table: Val, start: Val, stop: Val, count: Val, keys: Val) -> None:
        """Keys of the positions start .. stop of a row that sees `count`; in the last vector, LEAST past those."""
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
                    key = k.select(place < count, order_key(k, k.sum(total)), k.const(i32, LEAST))
                    k.store(key, keys, place * 4)

    def _totals(self, position: Val, together: int) -> list[Val]:
        """Of a tile of positions: scores of heads above zero, weighed and summed, those of a lane."""
        k = self.k
        totals = [k.zero(k.vf) for _ in range(together)]
        held = k.at(self.page, position * self.row)
        with k.range(0, self.count, k.lanes) as head:
            sums, queries = [k.zero(k.vf) for _ in range(together)], k.at(self.queries, head * 4)
            with k.range(self.index.pages.width) as column:
                x, line = k.load(k.vf, queries, column * self.line), k.opaque(k.at(held, column * 4))
                for number, total in enumerate(sums):
                    total.set(k.fma(x, k.broadcast(k.vf, line, number * self.row), total.value))
            weight, zero, there = k.load(k.vf, self.weights, head * 4), k.const(k.vf, 0), self._there(head)
            for total, found in zip(totals, sums, strict=True):
                above = k.select(found.value < zero, zero, found.value)
                total.set(k.select(there, k.fma(weight, above, total.value), total.value))
        return [total.value for total in totals]


def _seen(k: Builder, f: Any, token: Val) -> tuple[Val, Val]:
    """The page table of a row's sequence, and how many positions the row sees."""
    sequence = k.zero(i64)
    with k.loop_while(lambda: k.load(i32, f.starts, sequence.value * 4 + 4).sext(i64) <= token):
        sequence.set(sequence.value + 1)
    end = k.load(i32, f.starts, sequence.value * 4 + 4).sext(i64)
    count = k.load(i32, f.lengths, sequence.value * 4).sext(i64) - (end - 1 - token)
    return k.at(f.table, sequence.value * f.table_stride), count


def _choose(k: Builder, f: Any, keys: Val, table: Val, count: Val, out: Val) -> None:
    """The slots of the `k` greatest of `count` keys, of equal ones the first; all, and NONE, where they are fewer."""
    with k.ir.if_else((count <= f.k).raw) as (few, many):
        with few:
            with k.range(count) as place:
                k.store(_slot(k, table, place), out, place * 4)
            with k.range(count, f.k) as place:
                k.store(k.const(i32, NONE), out, place * 4)
        with many:
            least = _least(k, keys, count, f.k)
            ties = k.var(f.k - _count(k, keys, count, lambda key: key > k.splat(least)))
            written = k.zero(i64)
            with k.range(count) as place:
                key = k.load(i32, keys, place * 4)
                with k.when(key >= least):
                    tied = key.equals(least)
                    with k.when(k.select(tied, ties.value, k.index(1)) > 0):
                        k.store(_slot(k, table, place), out, written.value * 4)
                        written.set(written.value + 1)
                    ties.set(ties.value - k.select(tied, k.index(1), k.index(0)))


def _slot(k: Builder, table: Val, place: Val) -> Val:
    """The slot of a position."""
    return k.load(i32, table, place // PAGE * 4) * PAGE + (place % PAGE).trunc(i32)


def _least(k: Builder, keys: Val, count: Val, wanted: Val) -> Val:
    """The greatest i32 such that at least `wanted` keys are no less: its bits one by one, the highest turned about."""
    found, bit = k.var(k.const(i32, 0)), k.var(k.const(i32, LEAST))
    with k.range(32):
        tried = found.value | bit.value
        floor = k.splat(tried ^ LEAST)
        enough = _count(k, keys, count, lambda key: key >= floor) >= wanted
        found.set(k.select(enough, tried, found.value))
        bit.set(bit.value >> 1)
    return found.value ^ LEAST


def _count(k: Builder, keys: Val, count: Val, test: Callable[[Val], Val]) -> Val:
    """How many keys pass, i64."""
    total, one, none = k.zero(k.vi), k.const(k.vi, 1), k.const(k.vi, 0)
    with k.range(0, count, k.lanes) as at:
        total.set(total.value + k.select(test(k.load(k.vi, keys, at * 4)), one, none))
    return k.fold(total.value, lambda a, b: a + b).sext(i64)


def _rounded(count: int, lanes: int) -> int:
    return -(-count // lanes) * lanes
