"""Groups of ranks over gloo, each rank a process."""

import json
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from sporelm.errors import BackendError, RankLost

pytest.importorskip("torch", reason="torch is not installed")

from sporelm.distributed.torch import Rendezvous, TorchGroup

PROGRAM = """
import json, os, sys, threading, time
import numpy as np
from sporelm.distributed.torch import Rendezvous, TorchGroup
from sporelm.errors import RankLost

rank, size, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = Rendezvous()

def carry():  # what a launcher does: each rank's entries go to all others
    print(json.dumps({key: value.hex() for key, value in store.own().items()}), flush=True)
    store.add_all({key: bytes.fromhex(value) for key, value in json.loads(sys.stdin.readline()).items()})

threading.Thread(target=carry, daemon=True).start()
group = TorchGroup.connect_gloo(store, rank, size, "127.0.0.1")
if what == "exchange":
    for count in (5, 3, 0, 70000):
        shapes = [(2, count + other) for other in range(size)]
        parts = group.all_gather(np.full(shapes[rank], rank, np.float32), shapes)
        assert [part.shape for part in parts] == shapes, parts
        assert all((part == other).all() for other, part in enumerate(parts)), parts
    for number in range(3):
        values = np.arange(6, dtype=np.int32).reshape(2, 3) + number
        if rank == 0 and size > 1:
            group.send(values, 1)
        elif rank == 1:
            assert (group.receive((2, 3), np.dtype(np.int32), 0) == values).all()
    group.all_gather(np.zeros(1, np.float32), [(1,)] * size)  # a rank leaves only after the others are done
    print("equal", flush=True)
elif rank == 0:
    group.all_gather(np.zeros(1, np.float32), [(1,)] * size)
    if what == "die":
        os._exit(9)
    time.sleep(60)
else:
    group.all_gather(np.zeros(1, np.float32), [(1,)] * size)
    if what == "abort":
        threading.Timer(0.3, group.abort).start()
    one = np.zeros(1, np.float32)
    for wait in (lambda: group.all_gather(one, [(1,)] * size), lambda: group.receive((1,), one.dtype, 0)):
        try:
            wait()
            print("nothing was noticed", flush=True)
        except RankLost as reason:
            print("lost:", reason, flush=True)
    group.close()
"""


def run_group(size: int, what: str) -> list[list[str]]:
    """Run a program on each rank of a group; return the lines that each has printed."""
    words = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen([*words, str(rank), str(size), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    guard = threading.Timer(90, lambda: [process.kill() for process in processes])
    guard.start()
    try:
        entries: dict[str, str] = {}
        for process in processes:
            assert process.stdout is not None
            entries |= json.loads(process.stdout.readline())
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(entries) + "\n")
            process.stdin.flush()
        lines = []
        for process in reversed(processes):  # rank 0 may sleep until the others are done
            if process is processes[0]:
                process.kill() if what == "abort" else None
            out, _ = process.communicate()
            lines.append(out.splitlines())
        return lines[::-1]
    finally:
        guard.cancel()
        for process in processes:
            process.kill()


def test_ranks_exchange_arrays_of_different_sizes() -> None:
    assert run_group(3, "exchange") == [["equal"]] * 3


@pytest.mark.parametrize("what", ["die", "abort"])
def test_a_wait_ends_when_a_rank_dies_or_the_group_is_aborted(what: str) -> None:
    (lines,) = run_group(2, what)[1:]
    assert len(lines) == 2
    assert all(line.startswith("lost: group of ranks: ") for line in lines), lines


def test_an_address_of_another_host_is_an_error_with_a_remedy() -> None:
    with pytest.raises(BackendError, match=r"rank 0 cannot connect at 10\.77\.1\.2 .*Use addresses"):
        TorchGroup.connect_gloo(Rendezvous(), 0, 2, "10.77.1.2")


def test_a_rendezvous_without_entries_ends() -> None:
    store = Rendezvous()
    with pytest.raises(RankLost, match="no address was opened"):
        store.own(0.05)
    store.set("0/0", b"here")
    assert store.own() == {"0/0": b"here"}
    assert store.check(["0/0"])
    assert not store.check(["0/1"])
    with pytest.raises(RuntimeError, match="no other rank"):
        store.wait(["0/1"], timedelta(seconds=0.05))


def test_a_group_of_one_rank_needs_no_other() -> None:
    assert run_group(1, "exchange") == [["equal"]]
