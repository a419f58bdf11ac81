"""The process of one rank: it connects to the process of rank 0 and carries out its messages until that ends."""

import json
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from sporelm import __version__
from sporelm.api.host_choices import HostChoices
from sporelm.api.rank_meeting import Entries, RankMeeting
from sporelm.api.rank_opening import RankOptions, open_rank
from sporelm.engine.ranks.message_handler import OpenedRank
from sporelm.engine.ranks.messages import Hello, encode
from sporelm.engine.ranks.rank_address import RankAddress
from sporelm.engine.ranks.rank_server import RankServer, SetPhase
from sporelm.engine.ranks.transport import Connection, ConnectionLost, connect

END_SECONDS = 3.0  # for a rank whose connection was lost to end by itself
LOST_EXIT_CODE = 3
JOINING = -1  # in place of a number: the process takes the rank that it is given


def main() -> None:
    """Serve as the rank that standard input describes, in one line of JSON: the start of a spawned process."""
    logging.basicConfig(format="spore: %(message)s", level=logging.WARNING)
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for rank 0, which ends this one
    start = json.loads(sys.stdin.readline())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        serve_connection(RankAddress.parse(start["address"]), start["token"], rank=start["rank"])
    except ConnectionLost as reason:
        logging.warning("%s", reason)
        os._exit(LOST_EXIT_CODE)


class ProcessOpener:
    """Opens the rank of this process."""

    def __init__(self, connection: Connection, choices: HostChoices | None) -> None:
        """`choices` are those of a worker of another host."""
        self._connection, self._choices = connection, choices
        self._meeting: RankMeeting | None = None

    def meet(self, options: bytes) -> Entries:
        """Open addresses for other ranks, and return them."""
        decoded = RankOptions.decode(options)
        self._meeting = RankMeeting(decoded, decoded.group.stage or self._connection.local_host)
        return self._meeting.open_addresses()

    def close(self) -> None:
        """Leave a meeting that has not finished."""
        if self._meeting is not None:
            self._meeting.close()

    def open(self, options: bytes, addresses: Mapping[str, Mapping[str, bytes]], set_phase: SetPhase) -> OpenedRank:
        """Load the rank's part of the model."""
        meeting, self._meeting = self._meeting, None
        groups = None
        if meeting is not None:
            with ExitStack() as cleanup:
                cleanup.callback(meeting.close)
                groups = meeting.finish(addresses)
                cleanup.pop_all()
        decoded = RankOptions.decode(options)
        if self._choices is not None:
            decoded = self._choices.apply(decoded)
        return open_rank(decoded, set_phase, groups=groups)


def serve_connection(
    address: RankAddress,
    token: str,
    *,
    rank: int = JOINING,
    choices: HostChoices | None = None,
    tls: ssl.SSLContext | None = None,
    allow_public: bool = False,
    on_join: Callable[[str], None] | None = None,
    on_spare: Callable[[], None] | None = None,
) -> bool:
    """Connect to rank 0, and serve it until it ends; return whether it has ended the connection in good order.

    choices   of a worker of another host; None: rank 0 knows this host
    on_join   called with the address, once connected
    on_spare  called if no rank is free, so that this process waits until one is lost

    Raises ConnectionLost if it cannot be reached, or refuses this process; ModelError, for a worker of another host, if
    its model is missing or is another one.
    """
    connection = connect(address, token, tls=tls, allow_public=allow_public)
    connection.send(encode(Hello(__version__, socket.gethostname(), rank)))
    if on_join is not None:
        on_join(connection.peer)
    ended = threading.Event()

    def end_soon() -> None:
        """End the process where the rank does not: it may load weights, or be inside a native step."""
        if not ended.wait(END_SECONDS) and rank != JOINING:
            os._exit(LOST_EXIT_CODE)

    def start_to_end() -> None:
        threading.Thread(target=end_soon, name="rank-end", daemon=True).start()

    opener = ProcessOpener(connection, choices)
    server = RankServer(connection, opener, start_to_end, on_spare)
    try:
        is_over = server.serve()
        if rank == JOINING and server.open_error is not None:
            raise server.open_error
        return is_over
    finally:
        ended.set()
        opener.close()
