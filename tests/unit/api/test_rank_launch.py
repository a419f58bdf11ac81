"""The start of ranks: in which order processes connect, and what is refused."""

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm import __version__
from sporelm.api import rank_launch, rank_process
from sporelm.api.parallel_options import ParallelOptions
from sporelm.api.rank_launch import RankLauncher
from sporelm.api.rank_opening import _canonical
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine.ranks import transport
from sporelm.engine.ranks.messages import Hello, Prepare, RankReady, Reply, encode
from sporelm.engine.ranks.rank import Envelope
from sporelm.engine.ranks.transport import Connection
from sporelm.errors import BackendError, MemoryShortage, RankLost
from sporelm.models.sharding_plan import ShardingPlan

KEYS = b"a" * 32, b"b" * 32


class FakeListener:
    """Accepts processes that have connected in this order."""

    def __init__(self, numbers: Sequence[int], version: str = __version__) -> None:
        self.waiting: list[Connection] = []
        self.peers: list[Connection] = []
        for number in numbers:
            ours, theirs = socket.socketpair()
            self.waiting.append(Connection(ours, *KEYS, f"process {number}"))
            self.peers.append(Connection(theirs, *reversed(KEYS), "rank 0"))
            self.peers[-1].send(encode(Hello(version, "host", number)))

    def accept(self, seconds: float) -> Connection | None:
        return self.waiting.pop(0) if self.waiting else None

    def close(self) -> None:
        for connection in self.waiting:
            connection.close()

    def end_peers(self) -> None:
        for peer in self.peers:
            peer.close()


def make_launcher() -> RankLauncher:
    options: Any = SimpleNamespace(identity="model")
    return RankLauncher(options, ParallelOptions(tp=2, pp=2), None, None)  # type: ignore[arg-type]


def connect(listener: FakeListener, cleanup: ExitStack) -> dict[int, Any]:
    """Return the ranks of a launcher, by number, once these processes have connected."""
    launcher = make_launcher()
    launcher._local = listener  # type: ignore[assignment]
    processes: Any = {number: SimpleNamespace(poll=lambda: None, wait=lambda seconds: -9) for number in range(1, 4)}
    return launcher._connect(processes, cleanup)


def test_ranks_are_in_their_order_however_they_connect() -> None:
    listener = FakeListener([3, 1, 2])
    with ExitStack() as cleanup:
        ranks = connect(listener, cleanup)
        assert [(number, rank.name) for number, rank in ranks.items()] == [(1, "rank 1"), (2, "rank 2"), (3, "rank 3")]
        listener.end_peers()
        with pytest.raises(RankLost, match=r"rank 3: its process has ended \(signal 9, SIGKILL\)"):
            ranks[3].send(Envelope(Prepare())).result(5)


def test_a_process_of_another_version_is_refused_before_anything_is_loaded() -> None:
    listener = FakeListener([1, 2, 3], version="0.0.1")
    with ExitStack() as cleanup, pytest.raises(BackendError, match=r"another version of sporelm \(got '0.0.1'"):
        connect(listener, cleanup)
    listener.end_peers()


def test_ranks_of_one_stage_must_have_one_plan() -> None:
    launcher = make_launcher()
    ranks: Any = {number: SimpleNamespace(name=f"rank {number}") for number in range(1, 4)}
    ready = {1: RankReady("model", "a"), 2: RankReady("model", "b"), 3: RankReady("model", "b")}
    launcher._check_ready(ranks, ready, "a")
    with pytest.raises(BackendError, match="rank 3: its plan differs from that of rank 2"):
        launcher._check_ready(ranks, ready | {3: RankReady("model", "a")}, "a")
    with pytest.raises(BackendError, match="rank 1: its plan differs from that of rank 0"):
        launcher._check_ready(ranks, ready, "c")
    with pytest.raises(BackendError, match="rank 2: another model"):
        launcher._check_ready(ranks, ready | {2: RankReady("other", "b")}, "a")


def test_the_progress_of_other_ranks_is_reported_until_one_fails() -> None:
    launcher = make_launcher()
    reports: list[tuple[str, int, int]] = []
    launcher._progress = lambda *report: reports.append(report)
    ranks: Any = {number: SimpleNamespace(name=f"rank {number}", phase="load 40 %") for number in (1, 2)}
    pending: dict[int, Future[Reply]] = {1: Future(), 2: Future()}
    pending[1].set_result(RankReady("model", "a"))
    timer = threading.Timer(0.05, lambda: pending[2].set_exception(MemoryShortage("no room")))
    timer.start()
    with pytest.raises(MemoryShortage):
        launcher._wait_ready(ranks, pending)
    timer.join()
    assert ("rank 2: load 40 %", 1, 2) in reports


def test_the_signature_does_not_depend_on_the_order_of_sets() -> None:
    names = [f"weight{number}" for number in range(20)]
    plans = [
        ShardingPlan(ParallelConfig(2), dict.fromkeys(each), (), (), 1, (frozenset(each),), ((),))  # type: ignore[arg-type]
        for each in (names, names[::-1])
    ]
    assert _canonical(plans[0]) == _canonical(plans[1])
    assert _canonical(plans[0]) != _canonical(replace(plans[0], cache_heads=(((0, 1), (1, 4)),)))


@pytest.mark.parametrize(
    ("threads", "options", "backend", "total"),
    [
        (4, {"tp": 4}, "cpu", None),
        (2, {"tp": 4, "pp": 2}, "cpu", "8 of 8 ranks; usable 4). Use fewer ranks."),
        (6, {"tp": 2}, "cpu", "6 of 2 ranks; usable 4). Use fewer ranks or threads."),
        (6, {"tp": 2}, "torch", None),
        (6, {}, "cpu", None),  # the command line has its own warning
        (6, {"tp": 3, "rank_devices": ("cpu", "cuda@cuda:0", "cpu")}, "cpu", None),
        (8, {"tp": 4, "remote_ranks": 2, "rank_listen": "10.0.0.1:1", "rank_token_file": "t"}, "cpu", "8 of 2 ranks"),
    ],
    ids=str,
)
def test_threads_that_take_turns_are_noted(
    threads: int, options: dict[str, Any], backend: str, total: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_launch, "usable_cores", lambda: 4)
    note = rank_launch.note_waiting_threads(threads, ParallelOptions(**options), backend)
    assert (total in note) if total else not note


def test_spare_workers_wait_and_end_in_good_order(tmp_path: Path) -> None:
    token = tmp_path / "token"
    parallel = ParallelOptions(tp=2, remote_ranks=1, rank_listen="127.0.0.1:0", rank_token_file=token)
    options: Any = SimpleNamespace(identity="model")
    launcher = RankLauncher(options, parallel, None, None)  # type: ignore[arg-type]
    assert launcher._listener is not None
    launcher._start_processes = lambda cleanup: None  # type: ignore[method-assign, assignment, return-value]
    launcher.start()
    is_spare, ends = threading.Event(), []
    address, words = launcher._listener.address, transport.read_token(token)
    worker = threading.Thread(
        target=lambda: ends.append(rank_process.serve_connection(address, words, on_spare=is_spare.set))
    )
    worker.start()
    assert is_spare.wait(5)
    launcher.close()
    worker.join(5)
    assert ends == [True]
