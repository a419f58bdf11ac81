"""The loop of a worker's process: why a rank cannot be opened stays known to its host."""

import socket
import threading
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm.engine.ranks import rank as rank_module
from sporelm.engine.ranks import rank_server
from sporelm.engine.ranks.messages import OpenRank, RankReady
from sporelm.engine.ranks.rank import Envelope, ProcessRank
from sporelm.engine.ranks.rank_server import RankServer
from sporelm.engine.ranks.transport import Connection
from sporelm.errors import MemoryShortage, ModelFileError, RankLost, SporeError
from unit.engine.fake import limits
from unit.engine.ranks.fake_ranks import FakeWorker

KEYS = (b"a" * 32, b"b" * 32)


@pytest.mark.parametrize(("start_seconds", "is_lost"), [(30.0, False), (0.3, True)])
def test_a_process_that_starts_may_be_silent_for_longer(
    start_seconds: float, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may link a large library, during which no thread of it runs; a step is another matter."""
    monkeypatch.setattr(rank_module, "STALL_SECONDS", 0.2)
    monkeypatch.setattr(rank_module, "START_STALL_SECONDS", start_seconds)
    monkeypatch.setattr(rank_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(rank_server, "BEAT_SECONDS", 60.0)
    ours, theirs = socket.socketpair()
    opened: Any = SimpleNamespace(worker=FakeWorker(limits()), ready=RankReady("", ""), abort=lambda: None)
    opened.close = opened.worker.close
    opener: Any = SimpleNamespace(open=lambda *_: (sleep(0.8), opened)[1])
    server = RankServer(Connection(theirs, *KEYS, "rank 0"), opener, lambda: None)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    rank = ProcessRank("rank 1", Connection(ours, *reversed(KEYS), "process 1"))
    answer = rank.send(Envelope(OpenRank(b"")))
    if is_lost:
        with pytest.raises(RankLost, match=r"no sign of life for 0\.3 seconds"):
            answer.result(5)
    else:
        assert isinstance(answer.result(5), RankReady)
        deadline = monotonic() + 5
        while rank.lost is None:
            assert monotonic() < deadline
            sleep(0.01)
        assert rank.lost == "rank 1: no sign of life for 0.2 seconds"
    rank.close()
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [ModelFileError("not the model of rank 0"), MemoryShortage("too large")])
def test_a_model_that_does_not_fit_is_told_to_both_ends(error: SporeError) -> None:
    ours, theirs = socket.socketpair()

    def open_rank(*_: Any) -> Any:
        raise error

    server = RankServer(Connection(theirs, *KEYS, "rank 0"), SimpleNamespace(open=open_rank), lambda: None)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    rank = ProcessRank("rank 1", Connection(ours, *reversed(KEYS), "process 1"))
    with pytest.raises(type(error), match=str(error)):
        rank.send(Envelope(OpenRank(b""))).result(5)
    rank.close()
    thread.join(5)
    assert not thread.is_alive()
    # A lack of memory may pass; another model stays another one, so its worker does not join again.
    assert server.open_error is (error if isinstance(error, ModelFileError) else None)
