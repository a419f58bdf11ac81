"""A server on a real socket that says what a test tells it to, right or wrong, byte for byte."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass
class Request:
    """A request that the server received."""

    line: str
    headers: dict[str, str]
    body: Any


Script = Callable[[socket.socket], None]


@dataclass
class ScriptedServer:
    """Plays one script for each connection, the last one again and again; keeps the requests."""

    scripts: Sequence[Script | bytes]
    requests: list[Request] = field(default_factory=list)
    closed_early: threading.Event = field(default_factory=threading.Event)  # the client went before the end
    listening: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def run(self) -> None:
        for number in range(100):
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self.play(connection, self.scripts[min(number, len(self.scripts) - 1)])

    def play(self, connection: socket.socket, script: Script | bytes) -> None:
        with connection.makefile("rb") as file:
            line = file.readline().decode("latin-1").strip()
            if not line.endswith("HTTP/1.1"):  # TLS, for one
                return connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            headers = {}
            while text := file.readline().decode().strip():
                name, _, value = text.partition(":")
                headers[name.lower()] = value.strip()
            body = file.read(int(headers.get("content-length", 0)))
            self.requests.append(Request(line, headers, json.loads(body) if body else None))
            if isinstance(script, bytes):
                connection.sendall(script)
            else:
                script(connection)

    def until_closed(self, connection: socket.socket) -> None:
        """The end of a script: wait until the client has closed the connection."""
        connection.settimeout(60)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
        self.closed_early.set()


@contextlib.contextmanager
def scripted(*scripts: Script | bytes) -> Iterator[ScriptedServer]:
    """A server that runs."""
    server = ScriptedServer(scripts)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            server.listening.shutdown(socket.SHUT_RDWR)  # wakes `accept` on Linux
        with contextlib.suppress(OSError), socket.create_connection(server.listening.getsockname(), 60):
            pass
        server.listening.close()
        thread.join(60)
        assert not thread.is_alive()


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    """The event of a piece."""
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


def answer(*texts: str) -> bytes:
    """A whole answer of these pieces."""
    usage = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": len(texts)})
    pieces = b"".join(chunk(content=text) for text in texts)
    return STREAM + pieces + chunk("stop") + usage + DONE


def reply(status: int, body: Any, *headers: str, kind: str = "application/json") -> bytes:
    """An answer that is read at once."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Said", f"Content-Type: {kind}", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + data


def models(*names: str) -> bytes:
    """The list of models."""
    return reply(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]})
