"""Collectives in the memory of a `SharedMemoryGroup`; `distributed/shared_memory_layout.py` has the protocol.

An item of an exchange is one chunk, in all pieces of the payload: chunks wait for each other only across ranks, where
each is treated by one thread. A thread writes a piece of all its chunks before it waits, so that writing and waiting
overlap. Every chunk of a rank is written whether or not the others have come, so that no order of threads can block.
"""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.distributed.parking import EVERYONE, FUTEX_WAIT, FUTEX_WAKE, futex_number
from sporelm.distributed.shared_memory_layout import (
    ABORT,
    CELL_BYTES,
    CELLS,
    CHUNK_BYTES,
    CHUNKS,
    COMPLETED,
    LINE,
    PARKED,
    RANK_BYTES,
    RECEIVED,
    SENT,
    SEQUENCE,
    SLOT_BYTES,
    WAKE_UPS,
)

STREAMED_VALUES = 16  # rows of a multiple of these begin at multiples of every target's vectors
CHUNK_VALUES = CHUNK_BYTES // 4
CELL_VALUES = CELL_BYTES // 4
SLOT_VALUES = CHUNK_VALUES * CHUNKS

# of the group: its memory, the words of rank 0, the function that yields, the one that sleeps, and the time of a sleep
GROUP = "memory:p ranks:p rank:i yield_core:i park:i timeout:p"
EXCHANGE = f"{GROUP} flags:p slots:p size:i count:c rows:c"

SPINS = 200  # checks of a flag before the thread begins to yield its core
YIELDS = 200  # checks while it yields, before it parks

TOTAL = "seq_cst"  # PARKED and the words waited for: of a sleeper and a writer one must see the other


# ---- waiting


def _wait(k: Builder, f: Any, place: Val, min_value: Val, peer: Val) -> None:
    """Wait until the word at `place`, which rank `peer` writes, is at least `min_value`, or the group is aborted."""
    checks = k.zero(i64)

    def is_waiting() -> Val:
        missing = k.atomic_load(place) < min_value
        return k.both(missing, lambda: k.atomic_load(f.memory, ABORT, "monotonic").equals(0))

    with k.loop_while(is_waiting):
        checks.set(checks.value + 1)
        k.target.pause(k)
        with k.when(checks.value > SPINS):
            k.call_address(f.yield_core)
        with k.when(checks.value > SPINS + YIELDS):
            _park(k, f, place, min_value, k.at(f.ranks, peer * RANK_BYTES))


def _park(k: Builder, f: Any, place: Val, min_value: Val, words: Val) -> None:
    """Sleep until the rank of these words has written, for a short time at most."""
    number = futex_number()
    if number is None:
        k.call_address(f.park, k.load(i32, f.timeout))
        return
    wake_ups = k.atomic_load(words, WAKE_UPS)
    k.atomic("add", words, PARKED, 1, TOTAL)
    with k.when(k.atomic_load(place, order=TOTAL) < min_value):
        address, zero = k.address_of(k.at(words, WAKE_UPS)), k.index(0)
        operation, timeout = k.index(FUTEX_WAIT), k.address_of(f.timeout)
        k.call_address(f.park, k.index(number), address, operation, wake_ups, timeout, zero, zero)
    k.atomic("sub", words, PARKED, 1, TOTAL)


def _wake_waiting_ranks(k: Builder, f: Any) -> None:
    """Wake the threads that sleep until this rank writes."""
    number = futex_number()
    if number is None:
        return
    words = k.at(f.ranks, f.rank * RANK_BYTES)
    with k.when(k.atomic_load(words, PARKED, TOTAL) > 0):
        k.atomic("add", words, WAKE_UPS, 1, TOTAL)
        address, zero = k.address_of(k.at(words, WAKE_UPS)), k.index(0)
        wake, everyone = k.index(FUTEX_WAKE), k.index(EVERYONE)
        k.call_address(f.park, k.index(number), address, wake, everyone, zero, zero, zero)


# ---- rows and payloads


def _combine(k: Builder, out: Val, sources: list[Val], count: Val, *, is_streamed: bool = False) -> None:
    """Write the sum of one or two arrays of `count` numbers; `out` may be the first.

    is_streamed   write past the caches, see `_write_rows`; all are whole vectors
    """
    block = 4 * k.lanes
    whole, vectors = count // block * block, count // k.lanes * k.lanes

    def step(kind: Any, at: Val, widths: int) -> None:
        offsets = [at * 4 + 4 * k.lanes * v for v in range(widths)]
        values = [[k.load(kind, source, offset) for offset in offsets] for source in sources]
        totals = values[0] if len(values) == 1 else [a + b for a, b in zip(*values, strict=True)]
        for offset, total in zip(offsets, totals, strict=True):
            if is_streamed:
                k.store_past_caches(total, out, offset)
            else:
                k.store(total, out, offset)

    with k.range(0, whole, block) as at:
        step(k.vf, at, 4)
    with k.range(whole, vectors, k.lanes) as at:
        step(k.vf, at, 1)
    if not is_streamed:
        with k.range(vectors, count) as at:
            step(f32, at, 1)


def _for_rows(k: Builder, width: Val, start: Val, stop: Val, do: Callable[[Val, Val, Val, Val], None]) -> None:
    """Call `do(row, column, offset, count)` for each part of a row among the numbers start..stop of a payload of rows.

    `offset` counts from `start`.
    """
    with k.when(stop > start):
        at, row = k.var(start), k.var(start // width)
        column = k.var(start - row.value * width)
        with k.loop_while(lambda: at.value < stop):
            count = k.min(width - column.value, stop - at.value)
            do(row.value, column.value, at.value - start, count)
            at.set(at.value + count)
            row.set(row.value + 1)
            column.set(k.index(0))


def _write_rows(k: Builder, f: Any, width: Val, start: Val, stop: Val, place: Val) -> None:
    """Write the numbers start..stop of the rows of `x` to shared memory, for another rank to read.

    They go past the caches: on AMD's CPUs, cores that do not share a cache read memory several times faster than lines
    that another core has changed. A fence must follow before the other rank is told.
    """

    def copy(is_streamed: bool) -> None:
        def copy_part(row: Val, column: Val, offset: Val, count: Val) -> None:
            source = k.at(f.x, row * f.x_stride + column * 4)
            _combine(k, k.at(place, offset * 4), [source], count, is_streamed=is_streamed)

        _for_rows(k, width, start, stop, copy_part)

    with k.ir.if_else((width & STREAMED_VALUES - 1).equals(0).raw) as (streamed, plain):
        with streamed:
            copy(True)
        with plain:
            copy(False)


def _pad_row(k: Builder, row: Val, width: Val, padded: Val) -> None:
    """Zero the numbers between a row's width and its padded width."""
    with k.range(width, padded) as column:
        k.store(k.const(f32, 0.0), row, column * 4)


def _store_rows(k: Builder, f: Any, source: Val, start: Val, stop: Val) -> None:
    """Store a part of a payload of rows of `width` numbers as rows of `out`."""

    def store(row: Val, column: Val, offset: Val, count: Val) -> None:
        out = k.at(f.out, row * f.out_stride)
        _combine(k, k.at(out, column * 4), [k.at(source, offset * 4)], count)
        with k.when((column + count).equals(f.width)):
            _pad_row(k, out, f.width, f.padded)

    _for_rows(k, f.width, start, stop, store)


# ---- exchanges


WaitFor = Callable[[Val], Val]


def _exchange(
    k: Builder,
    f: Any,
    chunks: tuple[Val, Val],
    longest: Val,
    write: Callable[[Val, Val], None],
    read: Callable[[Val, WaitFor], None],
) -> None:
    """Exchange the chunks first..last of a payload, piece by piece.

    longest   numbers of the longest payload of a rank
    write     write(start, place): write this rank's chunk from number `start` on; a fence follows
    read      read(start, wait_for): use the chunks of all ranks; wait_for(rank) waits for a rank's chunk, and returns
              its place
    """
    first, last = chunks
    own = k.at(f.ranks, f.rank * RANK_BYTES)
    begun = k.load(i64, own, SEQUENCE)
    pieces = (longest + (SLOT_VALUES - 1)) // SLOT_VALUES
    with k.range(pieces) as piece:
        number = begun + piece + 1
        slots = k.at(f.slots, (number & 1) * SLOT_BYTES)
        with k.range(first, last) as chunk:
            place = k.at(slots, f.rank * (2 * SLOT_BYTES) + chunk * CHUNK_BYTES)
            write(piece * SLOT_VALUES + chunk * CHUNK_VALUES, place)
        k.fence()
        with k.range(first, last) as chunk:
            k.atomic_store(number, f.flags, f.rank * (CHUNKS * LINE) + chunk * LINE)
        _wake_waiting_ranks(k, f)
        with k.range(first, last) as chunk:

            def wait_for(rank: Val, slots: Val = slots, number: Val = number, chunk: Val = chunk) -> Val:
                flag = k.at(f.flags, rank * (CHUNKS * LINE) + chunk * LINE)
                _wait(k, f, flag, number, rank)
                return k.at(slots, rank * (2 * SLOT_BYTES) + chunk * CHUNK_BYTES)

            read(piece * SLOT_VALUES + chunk * CHUNK_VALUES, wait_for)
    taken = last - first
    with k.when((k.atomic("add", own, COMPLETED, taken, TOTAL) + taken).equals(f.count)):
        k.store(k.index(0), own, COMPLETED)
        k.store(begun + pieces, own, SEQUENCE)
    # A thread may have begun to sleep without seeing a flag that was not yet visible; now all of them are.
    _wake_waiting_ranks(k, f)


def all_reduce(target: Any, *, is_alone: bool = False) -> Kernel:
    """Add the rows of all ranks, in rank order; copy those of a rank that is alone. An item is one chunk of them."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        total = f.rows * f.width

        def write(start: Val, place: Val) -> None:
            _write_rows(k, f, f.width, start, k.min(start + CHUNK_VALUES, total), place)

        def part_of(rank: Val, place: Val, own: Val, offset: Val) -> Val:
            return k.select(f.rank.equals(rank), own, k.at(place, offset * 4))  # the memory is not cached here

        def read(start: Val, wait_for: WaitFor) -> None:
            stop = k.min(start + CHUNK_VALUES, total)
            places = [wait_for(k.index(rank)) for rank in range(1 if is_alone else 2)]

            def add_first(row: Val, column: Val, offset: Val, count: Val) -> None:
                out, own = k.at(f.out, row * f.out_stride), k.at(f.x, row * f.x_stride + column * 4)
                sources = [part_of(k.index(rank), place, own, offset) for rank, place in enumerate(places)]
                _combine(k, k.at(out, column * 4), sources, count)
                with k.when((column + count).equals(f.width)):
                    _pad_row(k, out, f.width, f.padded)

            _for_rows(k, f.width, start, stop, add_first)
            with k.range(2, f.size) as rank:
                place = wait_for(rank)

                def add(row: Val, column: Val, offset: Val, count: Val) -> None:
                    out, own = (k.at(p, row * s + column * 4) for p, s in ((f.out, f.out_stride), (f.x, f.x_stride)))
                    _combine(k, out, [out, part_of(rank, place, own, offset)], count)

                _for_rows(k, f.width, start, stop, add)

        _exchange(k, f, (first, last), total, write, read)

    name = "all_reduce_alone" if is_alone else "all_reduce"
    return Kernel(name, parse_fields(f"{EXCHANGE} x:p x_stride:i out:p out_stride:i width:i padded:i"), body)


# of each rank: columns of its payload, the columns that are taken, and where the first of its columns belongs
COLUMNS, TAKEN_START, TAKEN_STOP, FIRST_COLUMN = range(0, 32, 8)
RANGE_BYTES = 32


def all_gather(target: Any) -> Kernel:
    """Join the columns of all ranks. An item is one chunk of each rank's numbers."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        own_width = k.load(i64, f.ranges, f.rank * RANGE_BYTES + COLUMNS)

        def write(start: Val, place: Val) -> None:
            _write_rows(k, f, own_width, start, k.min(start + CHUNK_VALUES, f.rows * own_width), place)

        def read(start: Val, wait_for: WaitFor) -> None:
            with k.range(f.size) as rank:
                place = k.at(f.ranges, rank * RANGE_BYTES)
                width = k.load(i64, place, COLUMNS)
                low, high = k.load(i64, place, TAKEN_START), k.load(i64, place, TAKEN_STOP)
                shift = k.load(i64, place, FIRST_COLUMN)
                stop = k.min(start + CHUNK_VALUES, f.rows * width)
                chunk = wait_for(rank)

                def copy(row: Val, column: Val, offset: Val, count: Val) -> None:
                    begin, end = k.max(column, low), k.min(column + count, high)
                    out = k.at(f.out, row * f.out_stride)
                    with k.when(end > begin):
                        own = k.at(f.x, row * f.x_stride + begin * 4)
                        place = k.at(chunk, (offset + begin - column) * 4)
                        source = k.select(f.rank.equals(rank), own, place)
                        _combine(k, k.at(out, (shift + begin) * 4), [source], end - begin)
                        with k.when((shift + end).equals(f.width)):
                            _pad_row(k, out, f.width, f.padded)

                _for_rows(k, width, start, stop, copy)

        _exchange(k, f, (first, last), f.rows * f.longest, write, read)

    more = "x:p x_stride:i ranges:p longest:i out:p out_stride:i width:i padded:i"
    return Kernel("all_gather", parse_fields(f"{EXCHANGE} {more}"), body)


def argmax_shards(target: Any) -> Kernel:
    """Choose the best of all ranks' candidates, whose ids are `ids` + `first_id`. An item is a chunk of candidates."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        half = CHUNK_VALUES // 2  # a candidate is a logit and an id

        def rows_of(start: Val) -> tuple[Val, Val]:
            begin = start >> 1
            return begin, k.min(begin + half, f.rows)

        def write(start: Val, place: Val) -> None:
            begin, end = rows_of(start)
            with k.range(begin, end) as row:
                token, at = k.load(i32, f.ids, row * 4), (row - begin) * 8
                logit = k.load(f32, f.x, row * f.x_stride + k.max(token, 0).sext(i64) * 4)
                k.store(k.select(token < 0, k.const(f32, float("nan")), logit), place, at)
                k.store(token + f.first_id.trunc(i32), place, at + 4)

        def read(start: Val, wait_for: WaitFor) -> None:
            begin, end = rows_of(start)
            base = wait_for(k.index(0))
            with k.range(1, f.size) as rank:
                wait_for(rank)
            with k.range(begin, end) as row:
                at = (row - begin) * 8
                best, token = k.var(k.load(f32, base, at)), k.var(k.load(i32, base, at + 4))
                broken = k.var(k.select(best.value.is_nan(), k.const(i32, 1), k.const(i32, 0)))
                with k.range(1, f.size) as rank:
                    source = k.at(base, rank * (2 * SLOT_BYTES))
                    logit = k.load(f32, source, at)
                    broken.set(broken.value | k.select(logit.is_nan(), k.const(i32, 1), k.const(i32, 0)))
                    with k.when(logit > best.value):
                        best.set(logit)
                        token.set(k.load(i32, source, at + 4))
                k.store(k.select(broken.value.differs(0), k.const(i32, -1), token.value), f.out, row * 4)

        _exchange(k, f, (first, last), f.rows * 2, write, read)

    return Kernel("argmax_shards", parse_fields(f"{EXCHANGE} x:p x_stride:i ids:p first_id:i out:p"), body)


# ---- mailboxes


def _pass_cells(k: Builder, f: Any, counts: tuple[int, int, int], do: Callable[[Val, Val, Val], None]) -> None:
    """Call `do(start, stop, cell)` for each cell of a payload of rows, when the mailbox allows it.

    counts   offset of the count of this rank, of the count of the peer, and how far the latter may be behind
    """
    own, other, slack = counts
    total = f.tokens * f.each * f.width
    with k.range(0, total, CELL_VALUES) as start:
        number = k.load(i64, f.pair, own)
        _wait(k, f, k.at(f.pair, other), number + 1 - slack, f.peer)
        do(start, k.min(start + CELL_VALUES, total), k.at(f.ring, number % CELLS * CELL_BYTES))
        k.fence()
        k.atomic("add", f.pair, own, 1, TOTAL)
        _wake_waiting_ranks(k, f)


MAILBOX = f"{GROUP} tokens:c each:i width:i peer:i pair:p ring:p"


def send(target: Any) -> Kernel:
    """Write rows into the mailbox of another rank. The only item is all of them."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        def write(start: Val, stop: Val, cell: Val) -> None:
            _write_rows(k, f, f.width, start, stop, cell)

        _pass_cells(k, f, (SENT, RECEIVED, CELLS), write)

    return Kernel("send", parse_fields(f"{MAILBOX} x:p x_stride:i"), body)


def receive(target: Any) -> Kernel:
    """Read rows from the mailbox of another rank. The only item is all of them."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        def read(start: Val, stop: Val, cell: Val) -> None:
            _store_rows(k, f, cell, start, stop)

        _pass_cells(k, f, (RECEIVED, SENT, 0), read)

    return Kernel("receive", parse_fields(f"{MAILBOX} out:p out_stride:i padded:i"), body)
