"""Groups of ranks in shared memory: threads, processes, uneven payloads, aborts and lost processes."""

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.distributed.shared_memory_layout import CELL_BYTES, CELLS, SLOT_BYTES, GroupLayout
from sporelm.errors import BackendError, ContextError, RankLost

SPAWN = multiprocessing.get_context("spawn")


def run_ranks(size: int, run_rank: Callable[[SharedMemoryGroup], Any]) -> list[Any]:
    """Run `run_rank` in a thread for each rank, and return the results or the errors in rank order."""
    groups, results = SharedMemoryGroup.create(size), [None] * size

    def run(group: SharedMemoryGroup) -> None:
        try:
            results[group.rank] = run_rank(group)
        except Exception as error:
            results[group.rank] = error
            group.abort()

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def part_of(rank: int, shape: tuple[int, ...], number: int = 0) -> np.ndarray:
    return np.random.default_rng(1000 * number + rank).standard_normal(shape).astype(np.float32)


SHAPES = [(1, 1), (3, 7), (2, 1024), (5, 1025), (1, SLOT_BYTES // 4 + 1), (3, SLOT_BYTES // 4), (0, 5)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_threads_gather_in_rank_order(size: int) -> None:
    def exchange(group: SharedMemoryGroup) -> list[list[np.ndarray]]:
        return [
            group.all_gather(part_of(group.rank, shape, number), [shape] * size)
            for number, shape in enumerate(SHAPES * 2)
        ]

    for found in run_ranks(size, exchange):
        for number, (shape, parts) in enumerate(zip(SHAPES * 2, found, strict=True)):
            for rank in range(size):
                assert np.array_equal(parts[rank], part_of(rank, shape, number))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_uneven_payloads_of_any_dtype(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    dtype = data.draw(st.sampled_from([np.uint8, np.int32, np.float32, np.int64]))
    rounds = data.draw(
        st.lists(st.lists(st.integers(0, SLOT_BYTES // 2), min_size=size, max_size=size), min_size=1, max_size=4)
    )

    def values(rank: int, number: int, length: int) -> np.ndarray:
        return (np.arange(length) * (rank + 3) + number).astype(dtype)

    def exchange(group: SharedMemoryGroup) -> list[list[np.ndarray]]:
        return [
            group.all_gather(values(group.rank, number, lengths[group.rank]), [(length,) for length in lengths])
            for number, lengths in enumerate(rounds)
        ]

    for found in run_ranks(size, exchange):
        for number, (lengths, parts) in enumerate(zip(rounds, found, strict=True)):
            for rank, length in enumerate(lengths):
                assert parts[rank].dtype == dtype
                assert np.array_equal(parts[rank], values(rank, number, length))


def test_a_sender_runs_ahead_of_its_receiver() -> None:
    sender, receiver = SharedMemoryGroup.create(2)
    for number in range(CELLS):
        sender.send(part_of(0, (2, 100), number), 1)
    for number in range(CELLS):
        assert np.array_equal(receiver.receive((2, 100), np.dtype(np.float32), 0), part_of(0, (2, 100), number))


def test_large_arrays_pass_through_a_ring_of_stages() -> None:
    shape = (3, CELL_BYTES * CELLS // 4 + 5)

    def exchange(group: SharedMemoryGroup) -> np.ndarray:
        if group.rank == 0:
            group.send(part_of(0, shape), 1)
            return group.receive(shape, np.dtype(np.float32), 2)
        x = group.receive(shape, np.dtype(np.float32), group.rank - 1)
        group.send(x + 1, (group.rank + 1) % 3)
        return x

    found = run_ranks(3, exchange)
    assert np.array_equal(found[0], part_of(0, shape) + 1 + 1)


def test_an_abort_ends_all_waits() -> None:
    def exchange(group: SharedMemoryGroup) -> None:
        if group.rank == 0:
            time.sleep(0.05)
            group.abort()
        elif group.rank == 1:
            group.all_gather(np.zeros((1, 3), np.float32), [(1, 3)] * 4)
        elif group.rank == 2:
            group.receive((1, 3), np.dtype(np.float32), 0)
        else:
            group.send(np.zeros(CELLS * CELL_BYTES + 1, np.uint8), 0)

    found = run_ranks(4, exchange)
    assert found[0] is None
    assert [type(error) for error in found[1:]] == [RankLost] * 3


def test_a_group_stays_aborted_and_a_closed_one_refuses() -> None:
    first, second = SharedMemoryGroup.create(2)
    second.close()
    with pytest.raises(ContextError, match="after close"):
        second.all_gather(np.zeros(1, np.float32), [(1,), (1,)])
    first.abort()
    for call in (lambda: first.all_gather(np.zeros(1), [(1,), (1,)]), lambda: first.send(np.zeros(1), 1), first.check):
        with pytest.raises(RankLost, match="aborted"):
            call()


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(BackendError, match="shapes do not fit"):
        SharedMemoryGroup.create(1)[0].all_gather(np.zeros((2, 2)), [(2, 3)])


def test_groups_have_memory_only_for_what_they_do() -> None:
    # 8 ranks in each of 8 stages: a container has 64 MB of /dev/shm by default, and 16 ranks must fit
    assert GroupLayout(8, stride=0).nbytes < 5 << 20
    assert GroupLayout(16, has_slots=False, stride=2).nbytes < 40 << 20
    assert GroupLayout(64, has_slots=False, stride=8).nbytes < 150 << 20
    stage, *_ = SharedMemoryGroup.create(2, stride=0)
    with pytest.raises(BackendError, match="no mailbox from rank 0 to rank 1"):
        stage.send(np.zeros(1), 1)
    world, *_ = SharedMemoryGroup.create(4, has_slots=False, stride=2)
    with pytest.raises(BackendError, match="no mailbox from rank 0 to rank 3"):
        world.send(np.zeros(1), 3)
    with pytest.raises(BackendError, match="no room for collectives"):
        world.all_gather(np.zeros(1), [(1,)] * 4)


@given(st.integers(1, 9), st.booleans(), st.integers(0, 9))
def test_rings_do_not_overlap(size: int, has_slots: bool, stride: int) -> None:
    stride = min(stride, size)
    layout = GroupLayout(size, has_slots, stride)
    pairs = [(a, b) for a in range(size) for b in range(size) if stride and (a - b) % stride == 0]
    places = sorted(layout.ring(*pair) for pair in pairs)
    assert all(after - before >= CELLS * CELL_BYTES for before, after in pairwise(places))
    slots_end = layout.slots(size) if has_slots else layout.words_end
    assert not places or (places[0] >= slots_end and places[-1] + CELLS * CELL_BYTES <= layout.nbytes)
    assert layout.nbytes >= slots_end


def test_stages_send_along_their_places() -> None:
    groups = SharedMemoryGroup.create(6, has_slots=False, stride=2)
    for rank in range(4):
        groups[rank].send(part_of(rank, (2, 5)), rank + 2)
    for rank in range(4):
        found = groups[rank + 2].receive((2, 5), np.dtype(np.float32), rank)
        assert np.array_equal(found, part_of(rank, (2, 5)))


# ---- processes


def sum_parts(path: Path, rank: int, results: Any) -> None:
    group = SharedMemoryGroup.attach(path, rank)
    total = np.zeros((3, SLOT_BYTES // 4), np.float32)
    for number in range(3):
        for part in group.all_gather(part_of(rank, total.shape, number), [total.shape] * group.size):
            total += part
    results.send_bytes(total.tobytes())


def wait_for_others(path: Path, rank: int, results: Any) -> None:
    group = SharedMemoryGroup.attach(path, rank)
    results.send("attached")
    try:
        group.all_gather(np.zeros((1, 8), np.float32), [(1, 8)] * group.size)
    except RankLost as error:
        results.send(str(error))


def start(target: Callable[..., None], path: Path, rank: int) -> tuple[Any, Any]:
    """Return a process and the end of the pipe at which its results arrive."""
    mine, other = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=target, args=(path, rank, other), daemon=True)
    process.start()
    other.close()
    return process, mine


def test_processes_gather_and_leave_no_file(tmp_path: Path) -> None:
    path = tmp_path / "group"
    SharedMemoryGroup.create_file(path, 3)
    ranks = [start(sum_parts, path, rank) for rank in range(3)]
    totals = {results.recv_bytes() for _, results in ranks}
    for process, _ in ranks:
        process.join(60)
    assert len(totals) == 1
    assert sys.platform == "win32" or not path.exists()


def test_survivors_of_a_killed_process_leave_once_aborted(tmp_path: Path) -> None:
    path = tmp_path / "group"
    SharedMemoryGroup.create_file(path, 3)
    group = SharedMemoryGroup.attach(path, 0)
    ranks = [start(wait_for_others, path, rank) for rank in (1, 2)]
    assert [results.recv() for _, results in ranks] == ["attached"] * 2
    (killed, _), (other, results) = ranks
    killed.kill()
    killed.join(60)
    assert other.is_alive()
    assert sys.platform == "win32" or not path.exists()
    group.abort()
    assert "aborted" in results.recv()
    other.join(60)
    with pytest.raises(RankLost):
        group.all_gather(np.zeros((1, 8), np.float32), [(1, 8)] * 3)


def test_files_and_ranks_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "group"
    path.write_bytes(b"something else")
    with pytest.raises(BackendError, match="not the memory of a group"):
        SharedMemoryGroup.attach(path, 0)
    with pytest.raises(FileExistsError):
        SharedMemoryGroup.create_file(path, 2)
    SharedMemoryGroup.create_file(tmp_path / "other", 2)
    with pytest.raises(BackendError, match="allowed 0 to 1"):
        SharedMemoryGroup.attach(tmp_path / "other", 2)
