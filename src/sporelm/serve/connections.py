"""Limits of connections, which uvicorn does not set: those that send a request's head too slowly, or too much of it, or
take nothing of what they are sent, are closed, and those that are too many are told so."""

import json
from asyncio import TimerHandle, Transport
from typing import TYPE_CHECKING, Any

from sporelm.serve.config import ServeConfig

if TYPE_CHECKING:
    from asyncio import Protocol

    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Spoken
else:
    Spoken = object

RETRY_SECONDS = 5  # after which a connection may be free


def limited_protocol(config: ServeConfig) -> "type[Protocol]":
    """uvicorn's HTTP/1.1 protocol, the fast one where httptools is there, with the limits of a configuration."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Base  # type: ignore[assignment]

    class LimitedProtocol(LimitedConnection, Base):
        limits = config

    made: Any = LimitedProtocol
    return made


class LimitedConnection(Spoken):
    """What stands before a protocol of uvicorn's.

    From the first byte of a request on, the head must be whole within so many seconds and bytes. What the system does
    not take of an answer at once must be taken within so many seconds, even when all has been written. One connection
    too many is told so and closed; those that are there go on.
    """

    limits: ServeConfig
    head_timer: TimerHandle | None = None
    full_timer: TimerHandle | None = None
    head_bytes = 0
    seen: object = None  # the request that was begun last

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.max_connections:
            self.transport = transport
            transport.write(full(self.limits.max_connections))
            transport.close()
            return
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)  # to hear of what waits; at 0 TLS would write nothing at all
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.full_timer = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        between = self.cycle is None or self.cycle.response_complete
        if between and self.head_timer is None:
            self._wait_for_head()
        super().data_received(data)
        if self.cycle is not self.seen:
            self.seen = self.cycle
            self._head_is_there()
        elif between:
            self.head_bytes += len(data)
            if self.head_bytes > 2 * self.limits.max_headers and not self.transport.is_closing():
                self.transport.close()

    def _wait_for_head(self) -> None:
        self.head_bytes = 0
        self.head_timer = self.loop.call_later(self.limits.head_seconds, self._too_late)

    def _head_is_there(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _is_read(self) -> None:
        if self.full_timer is not None:
            self.full_timer.cancel()
            self.full_timer = None

    def _too_late(self) -> None:
        self.head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


def full(most: int) -> bytes:
    """What is said where `most` connections are open: the path, and with it the shape of errors, is not known yet."""
    message = f"{most} connections are open, which is the limit (max_connections): try again later"
    error = {"message": message, "type": "server_error", "param": None, "code": "too_many_connections"}
    body = json.dumps({"error": error})
    head = f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_SECONDS}\r\ncontent-type: application/json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
