"""Attention of rows to spans of keys: tiles of rows with equal spans pass over the keys, a block of keys at a time.

Queries are transposed: a vector holds one number of `lanes` rows, and is multiplied by a number of a key that is
repeated in its lanes. So no sum crosses lanes, and keys and values are used as they lie; a block of them is copied next
to each other, once for all rows of a tile. The softmax runs along lanes with a running maximum (Milakov and Gimelshein
2018). Blocks begin with the span, a score is summed in the order of a key's numbers, a result in that of the keys: the
arithmetic of a row depends neither on its lane nor on its tile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.jit.ssa_values import Var
from sporelm.backends.cpu.kernels.attention_page import MIN_SCORE
from sporelm.backends.cpu.kernels.latent_rows import transpose
from sporelm.backends.cpu.targets.tiles import registers

ROWS = 128  # of a tile at most; a multiple of a chunk's rows on every target
KEYS = 96  # of a block at most; results depend on it
STEP = 12  # blocks are multiples of this, itself a multiple of a register tile's keys on every target
VECTORS = 2  # of rows in a register tile
RECORD = 32  # bytes of a tile's record, i64: its first row, its rows, the first tile of its run, the tiles of its run


def span_tiles(target: Any) -> Kernel:
    """Cut rows into tiles of at most ROWS with equal spans. There is one item, which writes a record for each tile, and
    the number of tiles."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        start, tiles = k.zero(i64), k.zero(i64)

        def span(row: Val) -> Val:
            return k.load(i64, f.spans, row * 8)  # both numbers

        with k.loop_while(lambda: start.value < f.rows):
            begin, place = start.value, tiles.value
            row, own = k.var(begin + 1), span(begin)
            with k.loop_while(lambda: k.both(row.value < f.rows, lambda: span(row.value).equals(own))):
                row.set(row.value + 1)
            stop = row.value
            count = (stop - begin + (ROWS - 1)) // ROWS
            with k.range(count) as number:
                record = k.at(f.tiles, (place + number) * RECORD)
                first_row = begin + number * ROWS
                for at, value in enumerate((first_row, k.min(stop - first_row, ROWS), place, count)):
                    k.store(value, record, 8 * at)
            start.set(stop)
            tiles.set(place + count)
        k.store(tiles.value, f.count)

    return Kernel("span_tiles", parse_fields("spans:p rows:c tiles:p count:p"), body)


def cross_attention(target: Any, head_dim: int) -> Kernel:
    """Compute attention. An item is one tile of rows and one query head.

    Items are ordered by run of rows with equal spans, then head, then tile: consecutive items use the same keys, and
    many short runs are read in memory's order.
    """
    tile = SpanTile(target, head_dim)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            run = k.at(f.tiles, item // f.heads * RECORD)  # some tile of the item's run
            start, tiles = k.load(i64, run, 16), k.load(i64, run, 24)
            number = item - start * f.heads
            head, record = number // tiles, k.at(f.tiles, (start + number % tiles) * RECORD)
            row, count = k.load(i64, record), k.load(i64, record, 8)
            begin, end = (k.load(i32, f.spans, row * 8 + 4 * which).sext(i64) for which in range(2))
            columns, shared = head * (4 * head_dim), head // f.group * (4 * head_dim)
            rows = SpanRows(k, tile, scratch, count)
            rows.load_queries(k.at(f.q, row * f.q_stride + columns), f.q_stride, f.scale)
            blocks = (end - begin + (KEYS - 1)) // KEYS
            size = ((end - begin + (blocks - 1)) // blocks + (STEP - 1)) // STEP * STEP  # about equal ones
            with k.range(begin, end, size) as key:
                present = k.min(end - key, size)
                rows.load_keys(k.at(f.k, key * f.kv_stride + shared), f.kv_stride, rows.keys, present)
                rows.load_keys(k.at(f.v, key * f.kv_stride + shared), f.kv_stride, rows.values, present)
                rows.attend(present)
            rows.write_out(k.at(f.out, row * f.q_stride + columns), f.q_stride)

    text = "q:p q_stride:i k:p v:p kv_stride:i spans:p tiles:p heads:i group:i scale:f out:p"
    return Kernel(f"cross_attention_{head_dim}", parse_fields(text), body, scratch=tile.nbytes)


class SpanTile:
    """The sizes of a tile, for one target and one head size."""

    def __init__(self, target: Any, head_dim: int) -> None:
        many = registers(target) == 32
        self.head_dim = head_dim
        self.keys = 12 if many else 6 if target.fused else 4  # of a register tile
        blocks = -(-head_dim // self.keys)
        self.columns = -(-head_dim // blocks)  # of a register tile
        self.rows = VECTORS * target.lanes  # of a chunk, which is one register tile wide
        self.line = 4 * self.rows  # bytes of one number of a chunk's rows
        self.row = 4 * (-(-head_dim // 16) * 16)  # bytes of a copied key
        self.sizes = {
            "queries": ROWS // self.rows * self.line * head_dim,  # [chunk][head_dim][rows]
            "sums": ROWS // self.rows * self.line * head_dim,
            "peaks": ROWS * 4,
            "totals": ROWS * 4,
            "factors": self.line,  # of one chunk
            "scores": KEYS * self.line,  # [key][rows], of one chunk
            "keys": KEYS * self.row,
            "values": KEYS * self.row,
        }

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())


class SpanRows:
    """The rows of a tile, in scratch memory."""

    def __init__(self, k: Builder, tile: SpanTile, scratch: Val, count: Val) -> None:
        self.k, self.tile, self.count = k, tile, count
        self.chunk = tile.line * tile.head_dim  # bytes of a chunk's queries
        ends = accumulate(tile.sizes.values(), initial=0)
        places = {name: k.at(scratch, at) for name, at in zip(tile.sizes, ends, strict=False)}
        self.queries, self.sums, self.peaks, self.totals = (places[n] for n in ("queries", "sums", "peaks", "totals"))
        self.factors, self.scores = places["factors"], places["scores"]
        self.keys, self.values = places["keys"], places["values"]

    def load_queries(self, q: Val, stride: Val, scale: Val) -> None:
        """Load the rows' queries, scaled, and clear their sums. The last row also fills the lanes past it."""
        k, tile, wide = self.k, self.tile, 4 * self.k.lanes
        with k.range(0, self.chunks * tile.rows, k.lanes) as start:
            rows = [k.at(q, k.min(start + lane, self.count - 1) * stride) for lane in range(k.lanes)]
            to = k.at(self.queries, self._offset(start))
            if tile.head_dim < k.lanes:
                for column in range(tile.head_dim):
                    vector = k.vector([k.load(f32, row, 4 * column) for row in rows])
                    k.store(vector * k.splat(scale), to, column * tile.line)
            else:
                with self._column_blocks() as block:
                    held = [k.load(k.vf, row, block * 4) for row in rows]
                    for number, vector in enumerate(transpose(k, held)):
                        k.store(vector * k.splat(scale), to, (block + number) * tile.line)
        with k.range(0, self.chunks * self.chunk, wide) as place:
            k.store(k.const(k.vf, 0), self.sums, place)
        with k.range(0, self.chunks * tile.line, wide) as place:
            k.store(k.const(k.vf, MIN_SCORE), self.peaks, place)
            k.store(k.const(k.vf, 0), self.totals, place)

    def load_keys(self, source: Val, stride: Val, to: Val, count: Val) -> None:
        """Copy a block of keys or values. The last one also fills the rest of its register tile."""
        k, tile = self.k, self.tile
        with k.range((count + (tile.keys - 1)) // tile.keys * tile.keys) as key:
            row, out = k.at(source, k.min(key, count - 1) * stride), k.at(to, key * tile.row)
            if tile.head_dim < k.lanes:
                for column in range(tile.head_dim):
                    k.store(k.load(f32, row, 4 * column), out, 4 * column)
            else:
                for column in range(0, tile.head_dim, k.lanes):
                    at = 4 * min(column, tile.head_dim - k.lanes)
                    k.store(k.load(k.vf, row, at), out, at)

    def attend(self, count: Val) -> None:
        """Attend to the copied block of `count` keys."""
        k, tile = self.k, self.tile
        with k.range(self.chunks) as chunk:
            peak = self._score(k.at(self.queries, chunk * self.chunk), count)
            self._update_softmax(chunk * tile.line, peak, count)
            sums = k.at(self.sums, chunk * self.chunk)
            whole = tile.head_dim // tile.columns * tile.columns
            with k.range(0, whole, tile.columns) as column:
                self._accumulate_values(sums, column, tile.columns, count)
            if whole < tile.head_dim:
                self._accumulate_values(sums, k.index(whole), tile.head_dim - whole, count)

    def _score(self, queries: Val, count: Val) -> list[Val]:
        """Compute the scores of a chunk, and return their maxima in this block."""
        k, tile = self.k, self.tile
        tops = [k.var(k.const(k.vf, MIN_SCORE)) for _ in range(VECTORS)]
        with k.range(0, count, tile.keys) as key:
            held = k.at(self.keys, key * tile.row)
            sums = [[k.zero(k.vf) for _ in range(VECTORS)] for _ in range(tile.keys)]
            with k.range(tile.head_dim) as column:
                self._multiply(k.at(queries, column * tile.line), k.at(held, column * 4), tile.row, sums)
            for number, totals in enumerate(sums):
                for part, total in enumerate(totals):
                    k.store(total.value, self.scores, (key + number) * tile.line + part * (4 * k.lanes))
                    tops[part].set(k.fmax(total.value, tops[part].value))  # of repeated keys as well: no other maximum
        return [top.value for top in tops]

    def _update_softmax(self, at: Val, tops: list[Val], count: Val) -> None:
        """Turn the scores of a chunk into weights, and update the maximum, factor and sum of its rows."""
        k, tile = self.k, self.tile
        peaks, totals = [], []
        for part, top in enumerate(tops):
            place = at + part * (4 * k.lanes)
            before = k.load(k.vf, self.peaks, place)
            peaks.append(k.fmax(top, before))
            factor = k.exp(before - peaks[-1])
            totals.append(k.var(k.load(k.vf, self.totals, place) * factor))
            k.store(peaks[-1], self.peaks, place)
            k.store(factor, self.factors, part * (4 * k.lanes))
        with k.range(count) as key:
            line = k.at(self.scores, key * tile.line)
            for part, (peak, total) in enumerate(zip(peaks, totals, strict=True)):
                weight = k.exp(k.load(k.vf, line, part * (4 * k.lanes)) - peak)
                k.store(weight, line, part * (4 * k.lanes))
                total.set(total.value + weight)
        for part, total in enumerate(totals):
            k.store(total.value, self.totals, at + part * (4 * k.lanes))

    def _accumulate_values(self, sums: Val, column: Val, columns: int, count: Val) -> None:
        """Add weighted values to the sums of a chunk's rows, in some columns."""
        k, tile = self.k, self.tile
        sums = k.at(sums, column * tile.line)
        places = [[n * tile.line + part * (4 * k.lanes) for part in range(VECTORS)] for n in range(columns)]
        factors = [k.load(k.vf, self.factors, part * (4 * k.lanes)) for part in range(VECTORS)]
        totals = [
            [k.var(k.load(k.vf, sums, at) * factor) for at, factor in zip(row, factors, strict=True)] for row in places
        ]
        values = k.at(self.values, column * 4)
        with k.range(count) as key:
            self._multiply(k.at(self.scores, key * tile.line), k.at(values, key * tile.row), 4, totals)
        for row, held in zip(places, totals, strict=True):
            for at, total in zip(row, held, strict=True):
                k.store(total.value, sums, at)

    def _multiply(self, vectors: Val, numbers: Val, step: int, sums: list[list[Var]]) -> None:
        """Add the products of the vectors at `vectors` and each of the numbers `step` bytes apart at `numbers`."""
        k = self.k
        at, line = k.opaque(vectors), k.opaque(numbers)
        held = [k.load(k.vf, at, part * (4 * k.lanes)) for part in range(VECTORS)]
        for number, row in enumerate(sums):
            x = k.broadcast(k.vf, line, number * step)
            for vector, total in zip(held, row, strict=True):
                total.set(k.fma(vector, x, total.value))

    def write_out(self, out: Val, stride: Val) -> None:
        """Divide the sums by the sums of weights, and write the rows."""
        k, tile = self.k, self.tile
        with k.range(0, self.count, k.lanes) as start:
            total = k.load(k.vf, self.totals, start * 4)
            inverse = k.const(k.vf, 1.0) / total
            sums = k.at(self.sums, self._offset(start))
            if tile.head_dim < k.lanes:
                for column in range(tile.head_dim):
                    vector = k.load(k.vf, sums, column * tile.line) * inverse
                    for lane in range(k.lanes):
                        with k.when(start + lane < self.count):
                            k.store(vector.lane(lane), out, (start + lane) * stride + 4 * column)
            else:
                with self._column_blocks() as block:
                    held = [k.load(k.vf, sums, (block + n) * tile.line) * inverse for n in range(k.lanes)]
                    for lane, vector in enumerate(transpose(k, held)):
                        with k.when(start + lane < self.count):
                            k.store(vector, out, (start + lane) * stride + block * 4)

    def _offset(self, row: Val) -> Val:
        """Return the place of a row among the queries or sums, at the first number of a key."""
        rows = self.tile.rows
        return row // rows * self.chunk + row % rows * 4

    @contextmanager
    def _column_blocks(self) -> Iterator[Val]:
        """Loop over blocks of `lanes` columns, by their first columns. The last block ends with the last column."""
        k, width = self.k, self.tile.head_dim
        with k.range(-(-width // k.lanes)) as block:
            yield k.min(block * k.lanes, width - k.lanes)

    @property
    def chunks(self) -> Val:
        return (self.count + (self.tile.rows - 1)) // self.tile.rows
