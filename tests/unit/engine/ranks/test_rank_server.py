"""The loop of a worker's process: why a rank cannot be opened stays known to its host."""

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm.engine.ranks.messages import OpenRank
from sporelm.engine.ranks.rank import Envelope, ProcessRank
from sporelm.engine.ranks.rank_server import RankServer
from sporelm.engine.ranks.transport import Connection
from sporelm.errors import MemoryShortage, ModelFileError, SporeError

KEYS = (b"a" * 32, b"b" * 32)


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
