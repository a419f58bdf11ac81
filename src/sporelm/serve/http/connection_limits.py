"""Limits on connections that uvicorn lacks: slow or large heads, slow readers, and the number of connections."""

import json
from asyncio import TimerHandle, Transport
from typing import TYPE_CHECKING, Any

from sporelm.serve.serve_config import ServeConfig

if TYPE_CHECKING:
    from asyncio import Protocol

    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as UvicornProtocol
else:
    UvicornProtocol = object

RETRY_SECONDS = 5  # the Retry-After header where all connections are taken


def limited_protocol(config: ServeConfig) -> "type[Protocol]":
    """Return uvicorn's HTTP/1.1 protocol with the limits of a configuration: the fast one if httptools is installed."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as BaseProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as BaseProtocol  # type: ignore[assignment]

    class LimitedProtocol(LimitedConnection, BaseProtocol):
        limits = config

    protocol: Any = LimitedProtocol
    return protocol


class LimitedConnection(UvicornProtocol):
    """A mixin before a protocol of uvicorn.

    From the first byte of a request on, its head must arrive within a number of seconds and bytes. Data that the system
    buffers must be read within a number of seconds, even after all of it was written. A connection beyond the limit
    gets an error and is closed; the others are not affected.
    """

    limits: ServeConfig
    head_timer: TimerHandle | None = None
    write_timer: TimerHandle | None = None
    head_bytes = 0
    last_cycle: object = None  # of the request whose head arrived last

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.max_connections:
            self.transport = transport
            transport.write(too_many_connections(self.limits.max_connections))
            transport.close()
            return
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)  # to be told of any buffered data; at 0 TLS writes nothing
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_timer = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        is_between_requests = self.cycle is None or self.cycle.response_complete
        if is_between_requests and self.head_timer is None:
            self._start_head_timer()
        super().data_received(data)
        if self.cycle is not self.last_cycle:
            self.last_cycle = self.cycle
            self._stop_head_timer()
        elif is_between_requests:
            self.head_bytes += len(data)
            if self.head_bytes > 2 * self.limits.max_headers and not self.transport.is_closing():
                self.transport.close()

    def _start_head_timer(self) -> None:
        self.head_bytes = 0
        self.head_timer = self.loop.call_later(self.limits.head_seconds, self._close_late_head)

    def _stop_head_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _stop_write_timer(self) -> None:
        if self.write_timer is not None:
            self.write_timer.cancel()
            self.write_timer = None

    def _close_late_head(self) -> None:
        self.head_timer = None
        if not self.transport.is_closing():
            self.transport.close()


def too_many_connections(max_connections: int) -> bytes:
    """Return the response to one connection too many. Its path, and so the format of errors, is not known yet."""
    message = f"{max_connections} connections are open, which is the limit (max_connections): try again later"
    error = {"message": message, "type": "server_error", "param": None, "code": "too_many_connections"}
    body = json.dumps({"error": error})
    head = f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_SECONDS}\r\ncontent-type: application/json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
