"""Connections to a server, kept for the next request, and the answers that come over them."""

import asyncio
import os
import socket
import ssl
from time import perf_counter

from sporelm.bench.serving.event_stream import EventStream
from sporelm.bench.serving.http_reader import InvalidHttp, make_reader
from sporelm.bench.serving.server_target import ServerTarget

RECEIVE_BYTES = 1 << 16  # bytes that are taken at once
MAX_BODY_BYTES = 1 << 20  # of an answer that is not a stream


class ServerDisconnected(Exception):
    """The connection ended in the middle of an answer, or before it."""


def connection_failure_reason(error: OSError) -> str:
    """Why there is no connection, without the address, in the system's words."""
    if error.errno is None or isinstance(error, socket.gaierror | ssl.SSLError):
        return error.strerror or str(error)
    return os.strerror(error.errno)


class HttpAnswer:
    """One answer: its status, and a stream's events or the whole body."""

    __slots__ = ("content", "events", "status", "streamed")

    def __init__(self) -> None:
        self.status = 0  # none yet
        self.streamed = False
        self.events = EventStream()
        self.content = b""

    def begin(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.status = status
        self.streamed = status == 200 and b"event-stream" in headers.get(b"content-type", b"").lower()

    def take(self, data: bytes, now: float) -> None:
        """The next bytes of the body."""
        if self.streamed:
            self.events.take(data, now)
        elif len(self.content) < MAX_BODY_BYTES:
            self.content += data


class BenchConnection(asyncio.BufferedProtocol):
    """One connection, over which one request goes at a time."""

    def __init__(self) -> None:
        self.reader = make_reader(self)
        self.transport: asyncio.Transport | None = None
        self.answer: HttpAnswer | None = None
        self.whole: asyncio.Future[None] | None = None
        self.stays = True
        self.now = 0.0  # when the bytes that are being read arrived
        self._arrived = memoryview(
            bytearray(RECEIVE_BYTES)
        )  # used again and again: a new one for each piece costs more

    async def ask(self, request: bytes, answer: HttpAnswer) -> None:
        """Send a request and wait until its answer is whole. Raises Disconnected, NoHttp."""
        if self.transport is None or self.transport.is_closing():
            raise ServerDisconnected("the server closed the connection")
        self.answer = answer
        self.whole = asyncio.get_running_loop().create_future()
        self.reader.begin()
        self.transport.write(request)
        await self.whole

    @property
    def usable(self) -> bool:
        """Whether another request can go over it."""
        waiting = self.whole is not None and not self.whole.done()
        return self.stays and not waiting and self.transport is not None and not self.transport.is_closing()

    def abort(self) -> None:
        """Close it at once."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._arrived

    def buffer_updated(self, nbytes: int) -> None:
        self.now = perf_counter()
        if self.whole is None or self.whole.done():  # nothing was asked for
            self.abort()
            return
        try:
            self.reader.feed(bytes(self._arrived[:nbytes]))
        except (InvalidHttp, ValueError) as reason:
            self._fail(InvalidHttp(str(reason)))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self.whole is not None and not self.whole.done():
            self.reader.closed()
            self._fail(ServerDisconnected(str(error) if error else "the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if self.whole is not None and not self.whole.done():
            self.whole.set_exception(error)

    def head(self, status: int, headers: dict[bytes, bytes], *, stays: bool) -> None:
        self.stays = stays
        if self.answer is not None:
            self.answer.begin(status, headers)

    def body(self, data: bytes) -> None:
        if self.answer is not None:
            self.answer.take(data, self.now)

    def end(self) -> None:
        if self.whole is not None and not self.whole.done():
            self.whole.set_result(None)


class BenchClient:
    """As many connections as there are requests at a time; each is used again."""

    def __init__(self, target: ServerTarget) -> None:
        self.target = target
        self.tls: ssl.SSLContext | None = target.tls()
        self._address: str | None = None  # found once: later connections ask no name server
        self._idle: list[BenchConnection] = []

    async def ask(self, request: bytes) -> HttpAnswer:
        """The whole answer to a request. Raises OSError, Disconnected, NoHttp."""
        while True:
            kept = self._reuse()
            connection = kept or await self._connect()
            answer = HttpAnswer()
            try:
                await connection.ask(request, answer)
            except BaseException as error:  # a timeout too: what still comes belongs to no other request
                connection.abort()
                if isinstance(error, ServerDisconnected) and kept is not None and not answer.status:
                    continue  # closed while idle, which a server may do
                raise
            if connection.usable:
                self._idle.append(connection)
            else:
                connection.abort()
            return answer

    def close(self) -> None:
        """Close what is open."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _reuse(self) -> BenchConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> BenchConnection:
        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_connection(
            BenchConnection,
            self._address or self.target.host,
            self.target.port,
            ssl=self.tls,
            server_hostname=self.target.host if self.tls is not None else None,
        )
        peer = transport.get_extra_info("peername")
        if self._address is None and peer:
            self._address = peer[0]
        return connection
