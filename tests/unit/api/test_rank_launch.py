"""The start of ranks: in which order processes connect, and what is refused."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm import __version__
from sporelm.api.parallel_options import ParallelOptions
from sporelm.api.rank_launch import RankLauncher
from sporelm.engine.ranks.messages import Hello, Prepare, encode
from sporelm.engine.ranks.rank import Envelope
from sporelm.engine.ranks.transport import Connection
from sporelm.errors import RankLost

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
            self.peers[-1].send(encode(Hello(version, "host", 1, number)))

    def accept(self, seconds: float) -> Connection | None:
        return self.waiting.pop(0) if self.waiting else None

    def close(self) -> None:
        for connection in self.waiting:
            connection.close()

    def end_peers(self) -> None:
        for peer in self.peers:
            peer.close()


def connect(listener: FakeListener, cleanup: ExitStack) -> dict[int, Any]:
    """Return the ranks of a launcher, by number, once these processes have connected."""
    launcher = RankLauncher(None, ParallelOptions(tp=2, pp=2), None, None)  # type: ignore[arg-type]
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
