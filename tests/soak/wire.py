"""A minimal HTTP/1.1 client, so that tests can misbehave at any byte of a request."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

MAX_LINE_BYTES = 1 << 22
CLOSE_S = 5.0


@dataclass
class Answer:
    """A response of the server."""

    status: int
    headers: dict[str, str]
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Line:
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Answer:
        """Read status and headers of the next response. Raises ConnectionError if the server closes first."""
        try:
            text = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the server closed the connection before it answered") from None
        first, *rest = text[:-4].decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in rest)
        return Answer(int(first.split(" ")[1]), {name.lower(): value.strip() for name, value in pairs})

    async def pieces(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        """Yield the body of a response as it arrives. Raises ConnectionError if it is truncated."""
        try:
            if answer.headers.get("transfer-encoding") == "chunked":
                while size := int(await self.reader.readline() or b"x", 16):
                    yield (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readline()
            elif length := int(answer.headers.get("content-length", 0)):
                yield await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ValueError):
            raise ConnectionResetError("the server truncated its response") from None

    async def answer(self) -> Answer:
        """Read the next response with its body."""
        found = await self.head()
        found.body = b"".join([piece async for piece in self.pieces(found)])
        return found

    async def events(self, answer: Answer) -> AsyncGenerator[str, None]:
        """Yield the data of server-sent events."""
        rest = b""
        async for piece in self.pieces(answer):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    yield line[6:].decode()

    async def read_all(self) -> bytes:
        """Read until the server closes the connection, or until a timeout."""
        found = b""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_S):
                while piece := await self.reader.read(1 << 16):
                    found += piece
        return found


@asynccontextmanager
async def line_to(port: int, window: int | None = None) -> AsyncGenerator[Line, None]:
    """Open a connection, which is aborted at the end of the `with`. `window`: size of the receive buffer in bytes."""
    raw = socket.socket()
    raw.setblocking(False)
    if window is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    try:
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    except BaseException:
        raw.close()
        raise
    reader, writer = await asyncio.open_connection(sock=raw, limit=MAX_LINE_BYTES if window is None else window)
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


def request(
    method: str, path: str, body: Any = None, key: str = "", headers: dict[str, str] | None = None, close: bool = True
) -> bytes:
    """Build the bytes of a request; a `body` that is not bytes is sent as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"host": "localhost", "content-length": str(len(data))}
    if body is not None:
        lines["content-type"] = "application/json"
    if key:
        lines["authorization"] = f"Bearer {key}"
    if close:
        lines["connection"] = "close"
    text = "".join(f"{name}: {value}\r\n" for name, value in (lines | (headers or {})).items())
    return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode() + data


async def fetch(
    port: int, method: str, path: str, body: Any = None, key: str = "", headers: dict[str, str] | None = None
) -> Answer:
    """Send a request on a new connection and read the response."""
    async with line_to(port) as line:
        await line.send(request(method, path, body, key, headers))
        return await line.answer()
