"""Mamba 2's scan, and what the gated delta rule shares with it: rows taken one after the other over a state.

The state of a head is a matrix [rows, columns] that decays, takes up the outer product of two vectors, and is read by a
third. Columns do not depend on each other: an item is a tile of a few vectors of columns of one head of one sequence,
which stays in the nearest cache while the sequence's rows of the step go over it. Every element goes through the same
instructions in the same order however the rows are cut into steps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, Var, f32
from sporelm.backends.cpu.jit.kernel import fields
from sporelm.backends.cpu.kernels.sequences import SEQUENCES, columns_of, rows_of_sequence, state_of, vectors_of

# atanh(z) / z in powers of z * z, for z up to 1/3: log(1 + y) = 2 atanh(y / (2 + y)), within 2e-8
ATANH = tuple(1 / n for n in range(13, 0, -2))
WORTH = 3  # rows from which on a tile is copied
ROOM = 256  # bytes between parts of scratch memory, for what vectors store beyond the last value


def softplus(k: Builder, x: Val) -> Val:
    """log(1 + exp(x)) within 3e-7 of its value; NaN gives NaN."""
    y = k.exp(-k.fabs(x))
    z = y / (y + 2.0)
    square, total = z * z, k.const(x.type, ATANH[0])
    for coefficient in ATANH[1:]:
        total = k.fma(total, square, k.const(x.type, coefficient))
    positive = k.select(x < 0.0, k.const(x.type, 0.0), x)
    return positive + z * total * 2.0


def gates(name: str, text: str, pair: Callable[[Builder, Any, Val, Val, Val], tuple[Val, Val]]) -> Kernel:
    """An item is a token: two numbers for each head, all of the first before all of the second."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.vectors) as v:
            out, at = k.at(f.gates, token * f.gates_stride), v * (4 * k.lanes)
            for number, value in enumerate(pair(k, f, token, at, k.load(k.vf, f.decay, at))):
                k.store(value, out, at + f.second * number)

    return Kernel(name, fields(f"{text} stride:i decay:p bias:p gates:p gates_stride:i second:i vectors:i"), body)


def scan_gates(target: Any) -> Kernel:
    """By how much each head's state decays at each token, and the length of the time step."""

    def pair(k: Builder, f: Any, token: Val, at: Val, decay: Val) -> tuple[Val, Val]:
        step = softplus(k, k.load(k.vf, k.at(f.dt, token * f.stride), at) + k.load(k.vf, f.bias, at))
        low, high = k.splat(f.low), k.splat(f.high)
        step = k.select(step < low, low, step)
        step = k.select(step > high, high, step)
        return k.exp(step * decay), step

    return gates("scan_gates", "dt:p low:f high:f", pair)


@dataclass(frozen=True)
class Shape:
    """What kernels are specialised on: a head's state, and which of the shared heads goes with which head."""

    rows: int
    columns: int
    order: str  # of `ops.recurrent.head_pairs`
    by_row: bool = False  # each row of a state decays by itself

    @property
    def name(self) -> str:
        return f"{self.rows}_{self.columns}_{self.order}{'_by_row' * self.by_row}"

    def tiles(self, target: Any) -> int:
        return -(-self.columns // columns_of(target))

    def scratch(self, target: Any) -> int:
        """Bytes: vectors of `rows` numbers, a row of a tile, and a tile."""
        return self.vectors * (4 * self.rows + ROOM) + 4 * columns_of(target) * (self.rows + 1)

    @property
    def vectors(self) -> int:
        return 3 + self.by_row


class Item:
    """A tile of one head's state of one sequence, and the scratch memory of the thread that has it.

    Over some rows the tile is a copy in scratch memory, one row close after the other: in place they lie far apart, in
    few of the cache's sets. So it is where columns are no whole tiles, with zeros after the last column.
    """

    def __init__(self, k: Builder, f: Any, shape: Shape, item: Val, scratch: Val) -> None:
        self.k, self.shape, self.count = k, shape, vectors_of(k.target)
        tiles, wide = shape.tiles(k.target), columns_of(k.target)
        rest = item // tiles
        tile, self.head, sequence = item % tiles, rest % f.heads, rest // f.heads
        self.start, self.stop, self.begins = rows_of_sequence(k, f, sequence)
        self.shared = self.head // (f.heads // f.shared) if shape.order == "each" else self.head % f.shared
        self.columns = k.min(k.index(shape.columns) - tile * wide, wide)
        self.at = tile * (4 * wide)  # bytes from a row's first column to the tile's
        step = 4 * shape.rows + ROOM
        self.vectors = [k.at(scratch, step * number) for number in range(shape.vectors)]
        self.row = k.at(scratch, step * shape.vectors)
        copy = k.at(self.row, 4 * wide)
        self.is_whole = shape.columns % wide == 0
        self.copied = self.stop - self.start > (WORTH if self.is_whole else 0)
        self.home, self.home_stride = state_of(k, f, sequence), f.row_bytes
        self.home = k.at(self.home, self.head * shape.rows * f.row_bytes + self.at)
        self.state = k.select(self.copied, copy, self.home)
        self.stride = k.select(self.copied, k.index(4 * wide), f.row_bytes)

    def load(self, place: Val) -> list[Val]:
        """The tile's columns of some row."""
        k = self.k
        if not self.is_whole:
            self._put([k.const(k.vf, 0)] * self.count, self.row)
            with k.range(self.columns) as column:
                k.store(k.load(f32, place, column * 4), self.row, column * 4)
            place = self.row
        return self._get(place)

    def store(self, values: list[Val], place: Val) -> None:
        k = self.k
        if self.is_whole:
            return self._put(values, place)
        self._put(values, self.row)
        with k.range(self.columns) as column:
            k.store(k.load(f32, self.row, column * 4), place, column * 4)

    def fetch(self) -> None:
        """The state that the sequence left, or zeros where it begins."""
        k = self.k
        with k.ir.if_else(self.begins.raw) as (begins, goes_on):
            with begins, k.range(self.shape.rows) as row:
                self._put([k.const(k.vf, 0)] * self.count, k.at(self.state, row * self.stride))
            with goes_on, k.when(self.copied), k.range(self.shape.rows) as row:
                found = self.load(k.at(self.home, row * self.home_stride))
                self._put(found, k.at(self.state, row * self.stride))

    def leave(self) -> None:
        k = self.k
        with k.when(self.copied), k.range(self.shape.rows) as row:
            self.store(self._get(k.at(self.state, row * self.stride)), k.at(self.home, row * self.home_stride))

    def sweep(self, change: Callable[[Val, list[Val]], list[Val] | None]) -> None:
        """Each row of the state once; `change` of its number's offset and its values gives the new ones, if any."""
        k = self.k
        with k.range(self.shape.rows) as row:
            place = k.at(self.state, row * self.stride)
            changed = change(row * 4, self._get(place))
            if changed is not None:
                self._put(changed, place)

    def kept(self) -> list[Val]:
        """The first row of the state."""
        return self._get(self.state)

    def keep(self, values: list[Val]) -> None:
        self._put(values, self.state)

    def _get(self, place: Val) -> list[Val]:
        return [self.k.load(self.k.vf, place, n * 4 * self.k.lanes) for n in range(self.count)]

    def _put(self, values: list[Val], place: Val) -> None:
        for n, value in enumerate(values):
            self.k.store(value, place, n * 4 * self.k.lanes)


@contextmanager
def each_item(k: Builder, f: Any, shape: Shape, first: Val, last: Val, scratch: Val) -> Iterator[Item]:
    """What is done with each of these items whose sequence has rows: its state is at hand, and kept behind."""
    with k.range(first, last) as number:
        item = Item(k, f, shape, number, scratch)
        with k.when(item.start < item.stop):
            item.fetch()
            yield item
            item.leave()


def everywhere(k: Builder, place: Val, at: Val) -> Val:
    return k.broadcast(k.vf, place, at)


def zeros(k: Builder, count: int) -> list[Var]:
    return [k.zero(k.vf) for _ in range(count)]


def ssm_scan(target: Any, shape: Shape) -> Kernel:
    """Mamba 2's scan, of time steps and decays by `scan_gates`. An item is a tile of a head's state of a sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with each_item(k, f, shape, first, last, scratch) as item:
            skip = k.splat(k.load(f32, f.skip, item.head * 4))
            head = item.head * (4 * shape.columns) + item.at
            with k.range(item.start, item.stop) as token:
                row, gates = k.at(f.x, token * f.x_stride), k.at(f.gates, token * f.gates_stride)
                kept, step = (k.splat(k.load(f32, gates, item.head * 4 + f.second * n)) for n in (0, 1))
                write = k.at(row, f.inner + item.shared * (4 * shape.rows))
                read = k.at(write, f.shared * (4 * shape.rows))
                x = item.load(k.at(row, head))
                scaled, sums = [each * step for each in x], zeros(k, item.count)

                def change(at: Val, state: list[Val]) -> list[Val]:
                    b, c = (everywhere(k, place, at) for place in (write, read))
                    found = [k.fma(s, kept, b * u) for s, u in zip(state, scaled, strict=True)]
                    for total, s in zip(sums, found, strict=True):
                        total.set(k.fma(c, s, total.value))
                    return found

                item.sweep(change)
                result = [k.fma(skip, each, total.value) for each, total in zip(x, sums, strict=True)]
                item.store(result, k.at(f.out, token * f.out_stride + head))

    text = "x:p x_stride:i gates:p gates_stride:i second:i skip:p inner:i shared:i heads:i out:p out_stride:i"
    return Kernel(f"ssm_scan_{shape.name}", fields(f"{text} {SEQUENCES}"), body, scratch=shape.scratch(target))
