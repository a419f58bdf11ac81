"""Code that recurrent kernels share: the rows of a sequence update a state one after the other.

The state of a head is a matrix [rows, columns] that decays, accumulates the outer product of two vectors, and is read
by a third. Columns are independent: an item is a tile of a few vectors of columns of one head of one sequence. The tile
stays in the L1 cache while the rows of the sequence update it. Every element goes through the same instructions in the
same order, however the rows are split into steps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, Var, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.step_sequences import columns_per_tile, sequence_rows, state_address, vectors_per_tile

# atanh(z) / z in powers of z * z, for z up to 1/3: log(1 + y) = 2 atanh(y / (2 + y)), within 2e-8
ATANH = tuple(1 / n for n in range(13, 0, -2))


MIN_ROWS_TO_COPY = 3  # rows from which on a tile is copied


PADDING_BYTES = 256  # bytes between parts of scratch memory, for vector stores beyond the last value


def softplus(k: Builder, x: Val) -> Val:
    """Compute softplus, log(1 + exp(x)), within 3e-7 of its value; NaN gives NaN."""
    y = k.exp(-k.fabs(x))
    z = y / (y + 2.0)
    square, total = z * z, k.const(x.type, ATANH[0])
    for coefficient in ATANH[1:]:
        total = k.fma(total, square, k.const(x.type, coefficient))
    positive = k.select(x < 0.0, k.const(x.type, 0.0), x)
    return positive + z * total * 2.0


def gate_kernel(name: str, text: str, pair: Callable[[Builder, Any, Val, Val, Val], tuple[Val, Val]]) -> Kernel:
    """Compute the gates. An item is a token: two numbers for each head, all of the first before all of the second."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token, k.range(f.vectors) as v:
            out, at = k.at(f.gates, token * f.gates_stride), v * (4 * k.lanes)
            for number, value in enumerate(pair(k, f, token, at, k.load(k.vf, f.decay, at))):
                k.store(value, out, at + f.second * number)

    return Kernel(name, parse_fields(f"{text} stride:i decay:p bias:p gates:p gates_stride:i second:i vectors:i"), body)


@dataclass(frozen=True)
class StateShape:
    """The specialization of a kernel: a head's state, and the shared head that each head uses."""

    rows: int
    columns: int
    order: str  # of `ops.recurrent.head_pairs`
    by_row: bool = False  # each row of a state decays by itself

    @property
    def name(self) -> str:
        return f"{self.rows}_{self.columns}_{self.order}{'_by_row' * self.by_row}"

    def tiles(self, target: Any) -> int:
        return -(-self.columns // columns_per_tile(target))

    def scratch(self, target: Any) -> int:
        """Return the bytes of scratch memory: vectors of `rows` numbers, a row of a tile, and a tile."""
        return self.vectors * (4 * self.rows + PADDING_BYTES) + 4 * columns_per_tile(target) * (self.rows + 1)

    @property
    def vectors(self) -> int:
        return 3 + self.by_row


class StateTile:
    """A tile of one head's state of one sequence, and the scratch memory of its thread.

    Over several rows the tile is a copy in scratch memory with contiguous rows: in place, its rows share few cache
    sets. A tile with a partial vector of columns is copied too, with zeros after the last column.
    """

    def __init__(self, k: Builder, f: Any, shape: StateShape, item: Val, scratch: Val) -> None:
        self.k, self.shape, self.count = k, shape, vectors_per_tile(k.target)
        tiles, wide = shape.tiles(k.target), columns_per_tile(k.target)
        rest = item // tiles
        tile, self.head, sequence = item % tiles, rest % f.heads, rest // f.heads
        self.start, self.stop, self.begins = sequence_rows(k, f, sequence)
        self.shared = self.head // (f.heads // f.shared) if shape.order == "each" else self.head % f.shared
        self.columns = k.min(k.index(shape.columns) - tile * wide, wide)
        self.at = tile * (4 * wide)  # bytes from a row's first column to the tile's
        step = 4 * shape.rows + PADDING_BYTES
        self.vectors = [k.at(scratch, step * number) for number in range(shape.vectors)]
        self.row = k.at(scratch, step * shape.vectors)
        copy = k.at(self.row, 4 * wide)
        self.is_whole = shape.columns % wide == 0
        self.copied = self.stop - self.start > (MIN_ROWS_TO_COPY if self.is_whole else 0)
        self.home, self.home_stride = state_address(k, f, sequence), f.row_bytes
        self.home = k.at(self.home, self.head * shape.rows * f.row_bytes + self.at)
        self.state = k.select(self.copied, copy, self.home)
        self.stride = k.select(self.copied, k.index(4 * wide), f.row_bytes)

    def load(self, place: Val) -> list[Val]:
        """Load the tile's columns of a row."""
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
        """Load the state that the sequence left, or zeros where the sequence begins."""
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
        """Visit each row of the state once; `change` returns new values, if any, from the offset of the row and its
        values."""
        k = self.k
        with k.range(self.shape.rows) as row:
            place = k.at(self.state, row * self.stride)
            changed = change(row * 4, self._get(place))
            if changed is not None:
                self._put(changed, place)

    def first_row(self) -> list[Val]:
        """Return the first row of the state."""
        return self._get(self.state)

    def keep(self, values: list[Val]) -> None:
        self._put(values, self.state)

    def _get(self, place: Val) -> list[Val]:
        return [self.k.load(self.k.vf, place, n * 4 * self.k.lanes) for n in range(self.count)]

    def _put(self, values: list[Val], place: Val) -> None:
        for n, value in enumerate(values):
            self.k.store(value, place, n * 4 * self.k.lanes)


@contextmanager
def each_state_tile(k: Builder, f: Any, shape: StateShape, first: Val, last: Val, scratch: Val) -> Iterator[StateTile]:
    """Run the body for each item whose sequence has rows; load its state before and store it after."""
    with k.range(first, last) as number:
        item = StateTile(k, f, shape, number, scratch)
        with k.when(item.start < item.stop):
            item.fetch()
            yield item
            item.leave()


def broadcast(k: Builder, place: Val, at: Val) -> Val:
    return k.broadcast(k.vf, place, at)


def zero_vectors(k: Builder, count: int) -> list[Var]:
    return [k.zero(k.vf) for _ in range(count)]
