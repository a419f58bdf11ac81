"""Cases of collectives. The back-end is one rank of a group; the other ranks run the numpy references in threads."""

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.distributed.shared_memory_layout import CELL_BYTES, CHUNK_BYTES, SLOT_BYTES
from sporelm.evals.conformance.conformance_case import Case, On, case
from sporelm.ops.collectives import Ranges

ROWS = (1, 3, 33)
WIDTHS = (1, 7, 64, 320, CHUNK_BYTES // 4 + 1)
RANGES: dict[str, Ranges] = {
    "equal": ((0, 64), (64, 128)),
    "odd": ((0, 7), (7, 40), (40, 41)),
    "shared": ((0, 64), (0, 64), (64, 96), (64, 96)),
    "empty": ((0, 16), (16, 16), (16, 33)),
    "unordered": ((32, 48), (0, 32)),
}


def run_ranks(rank: int, size: int, run: Callable[[SharedMemoryGroup], Any], other: Callable[..., Any]) -> Any:
    """Return the result of `run` on one rank while the others call `other`."""
    groups = SharedMemoryGroup.create(size)
    threads = [Thread(target=other, args=(group,), daemon=True) for group in groups if group.rank != rank]
    for thread in threads:
        thread.start()
    try:
        return run(groups[rank])
    except BaseException:
        groups[rank].abort()
        raise
    finally:
        for thread in threads:
            thread.join()


def summed(on: On, rank: int, size: int, rows: int, width: int) -> Any:
    values = [on.values(rows, width) for _ in range(size)]
    return run_ranks(
        rank,
        size,
        lambda group: ops.all_reduce(on.tensor(values[rank]), group=group),
        lambda group: ops.all_reduce.reference(values[group.rank], group=group),
    )


def gathered(on: On, rank: int, ranges: Ranges, rows: int) -> Any:
    values = [on.values(rows, stop - start) for start, stop in ranges]
    return run_ranks(
        rank,
        len(ranges),
        lambda group: ops.all_gather(on.tensor(values[rank]), group=group, ranges=ranges),
        lambda group: ops.all_gather.reference(values[group.rank], group=group, ranges=ranges),
    )


def greatest(on: On, rank: int, ranges: Ranges, rows: int) -> Any:
    logits = np.round(on.values(rows, max(stop for _, stop in ranges)))  # with equal ones
    logits[:1] = np.float32(-np.inf)
    logits[1:2, -1] = np.nan
    shards = [np.ascontiguousarray(logits[:, start:stop]) for start, stop in ranges]
    return run_ranks(
        rank,
        len(ranges),
        lambda group: ops.argmax_shards(on.tensor(shards[rank]), group=group, ranges=ranges),
        lambda group: ops.argmax_shards.reference(shards[group.rank], group=group, ranges=ranges),
    )


def sent(on: On, rows: int, width: int) -> Any:
    arrived: list[np.ndarray] = []

    def keep(group: SharedMemoryGroup) -> None:
        arrived.append(group.receive((rows, width), np.dtype(np.float32), 1))

    x = ops.scale(on.rows(rows, width), factor=2.0)  # a result of the back-end
    run_ranks(1, 2, lambda group: ops.send(x, group=group, target=0), keep)
    return arrived[0]


def received(on: On, rows: int, width: int) -> Any:
    values, like = on.values(rows, width), on.rows(rows, 5)
    return run_ranks(
        0,
        2,
        lambda group: ops.receive(like, group=group, source=1, row_shape=(width,)),
        lambda group: group.send(values, 0),
    )


def cases() -> Iterator[Case]:
    """Yield the cases of collectives."""
    for rows in ROWS:
        for width in WIDTHS:
            for size in (1, 2, 3):
                name = f"{size} ranks {rows}x{width}"
                yield case("all_reduce", name, summed, size // 2, size, rows, width, common=size == 2, exact=True)
    large = SLOT_BYTES // 4 + 70
    yield case("all_reduce", "3 ranks of several pieces", summed, 0, 3, 3, large, common=False, exact=True)
    for name, ranges in RANGES.items():
        for rows in (*ROWS, 700):
            rank = len(ranges) - 1
            yield case("all_gather", f"{name} ranges {rows}", gathered, rank, ranges, rows, exact=True)
            if name != "empty":
                yield case("argmax_shards", f"{name} ranges {rows}", greatest, rank, ranges, rows, exact=True)
    for rows in ROWS:
        for width in (*WIDTHS, CELL_BYTES // 4):
            yield case("send", f"{rows}x{width}", sent, rows, width, exact=True)
            yield case("receive", f"{rows}x{width}", received, rows, width, exact=True)
