"""HTTP/1.1 by hand, so that clients can misbehave at any byte of it."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

LONGEST_LINE = 1 << 22  # bytes of an answer's line
HANG_UP_S = 5.0


@dataclass
class Answer:
    """What a server said."""

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
        """Status and headers of the next answer. Raises ConnectionError where there is none."""
        try:
            text = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the server hung up before it answered") from None
        first, *rest = text[:-4].decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in rest)
        return Answer(int(first.split(" ")[1]), {name.lower(): value.strip() for name, value in pairs})

    async def pieces(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The body of an answer as it comes. Raises ConnectionError for one that is cut off."""
        try:
            if answer.headers.get("transfer-encoding") == "chunked":
                while size := int(await self.reader.readline() or b"x", 16):
                    yield (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readline()
            elif left := int(answer.headers.get("content-length", 0)):
                yield await self.reader.readexactly(left)
        except (asyncio.IncompleteReadError, ValueError):
            raise ConnectionResetError("the server cut its answer off") from None

    async def answer(self) -> Answer:
        """The next answer, whole."""
        found = await self.head()
        found.body = b"".join([piece async for piece in self.pieces(found)])
        return found

    async def events(self, answer: Answer) -> AsyncGenerator[str, None]:
        """The data of server-sent events."""
        rest = b""
        async for piece in self.pieces(answer):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    yield line[6:].decode()

    async def said(self) -> bytes:
        """Whatever the server says until it hangs up, or for some time."""
        found = b""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(HANG_UP_S):
                while piece := await self.reader.read(1 << 16):
                    found += piece
        return found


@asynccontextmanager
async def line_to(port: int, window: int | None = None) -> AsyncGenerator[Line, None]:
    """A connection, cut at the end of the `with` whatever is still on its way. `window`: bytes taken unread at most."""
    made = socket.socket()
    made.setblocking(False)
    if window is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    try:
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    except BaseException:
        made.close()
        raise
    reader, writer = await asyncio.open_connection(sock=made, limit=LONGEST_LINE if window is None else window)
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


def request(
    method: str, path: str, body: Any = None, key: str = "", headers: dict[str, str] | None = None, close: bool = True
) -> bytes:
    """The bytes of a request; a `body` that is not bytes is sent as JSON."""
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


async def asked(
    port: int, method: str, path: str, body: Any = None, key: str = "", headers: dict[str, str] | None = None
) -> Answer:
    """The answer to a request on a connection of its own."""
    async with line_to(port) as line:
        await line.send(request(method, path, body, key, headers))
        return await line.answer()
