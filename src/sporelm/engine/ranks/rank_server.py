"""The loop of a worker process: carries out the messages of the engine's process until that ends or closes it."""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from sporelm.engine.ranks.message_handler import MessageHandler, OpenedRank
from sporelm.engine.ranks.messages import (
    Close,
    MeetRanks,
    OpenRank,
    RankAddresses,
    Request,
    WaitAsSpare,
    check_request,
    decode_request,
)
from sporelm.engine.ranks.rank import RankEndpoint
from sporelm.engine.ranks.transport import Connection, ConnectionLost
from sporelm.errors import BackendError, ModelError, SporeError

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5


SetPhase = Callable[[str], None]


class RankOpener(Protocol):
    """Opens the worker of a rank."""

    def meet(self, options: bytes) -> dict[str, dict[str, bytes]]:
        """Open addresses for other ranks, and return them. Raises SporeError."""

    def open(self, options: bytes, addresses: Mapping[str, Mapping[str, bytes]], set_phase: SetPhase) -> OpenedRank:
        """Return the worker, given the addresses of all ranks. Raises SporeError."""


class RankServer:
    """Serves one connection."""

    def __init__(
        self,
        connection: Connection,
        opener: RankOpener,
        on_lost: Callable[[], None],
        on_spare: Callable[[], None] | None = None,
    ) -> None:
        """Use `serve`.

        on_lost   called in a thread when the connection ends while something still runs, once the rank's waits were
                  aborted
        on_spare  called if no rank is free for this process
        """
        self._endpoint = RankEndpoint(connection)
        self._connection = connection
        self._opener = opener
        self._on_lost = on_lost
        self._on_spare = on_spare
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._rank: OpenedRank | None = None
        self._ended = threading.Event()
        self.open_error: ModelError | None = None  # why this host cannot open the rank

    def serve(self) -> bool:
        """Carry out messages until the connection ends; return whether it was closed in good order."""
        threads = [
            threading.Thread(target=target, name=f"rank-{name}", daemon=True)
            for name, target in (("requests", self._receive), ("heartbeat", self._beat))
        ]
        for thread in threads:
            thread.start()
        try:
            return self._run()
        finally:
            self._ended.set()
            self._connection.shut_down()
            for thread in threads:
                thread.join()
            if self._rank is not None:
                self._rank.close()
            self._connection.close()

    def _run(self) -> bool:
        handler: MessageHandler | None = None
        while (request := self._requests.get()) is not None:
            if isinstance(request, Close):
                self._ended.set()
                self._endpoint.finish()
                return True
            if isinstance(request, WaitAsSpare):
                if self._on_spare is not None:
                    self._on_spare()
                continue
            try:
                if isinstance(request, MeetRanks):
                    self._endpoint.reply(RankAddresses(self._opener.meet(request.options)))
                    continue
                if isinstance(request, OpenRank):
                    if handler is not None:
                        raise BackendError("ranks: this rank is open already")
                    self._rank = self._opener.open(request.options, request.addresses, self._set_phase)
                    handler = MessageHandler(self._rank.worker)
                    self._endpoint.reply(self._rank.ready)
                    continue
                if handler is None:
                    raise BackendError(f"ranks: {type(request).__name__} came before OpenRank")
                check_request(request, handler.worker.limits)
                result = handler.handle(request)
                self._endpoint.reply(result() if callable(result) else result)
            except ConnectionLost:
                return False
            except Exception as error:
                if not isinstance(error, SporeError):
                    log.warning("a message failed", exc_info=True)
                if isinstance(error, ModelError) and isinstance(request, OpenRank):
                    self.open_error = error
                with suppress(ConnectionLost):
                    self._endpoint.fail(error)
            request = None  # its arrays are not kept until the next message
        return False

    def _set_phase(self, phase: str) -> None:
        self._endpoint.phase = phase

    def _receive(self) -> None:
        """Queue the requests, so that the end of the connection is noticed during a step."""
        try:
            while (payload := self._connection.receive()) is not None:
                self._requests.put(decode_request(payload))
                del payload
        except ConnectionLost as reason:
            if not self._ended.is_set():
                log.info("%s", reason)
        except SporeError as reason:
            log.warning("%s", reason)
            with suppress(ConnectionLost):
                self._endpoint.fail(reason)
            self._connection.shut_down()
        self._requests.put(None)
        if self._ended.is_set():
            return
        opened = self._rank
        if opened is not None:
            opened.abort()
        self._on_lost()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._endpoint.beat()
            except ConnectionLost:
                return
