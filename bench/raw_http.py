"""Servers started as processes, and a client over plain sockets that counts an answer's bytes and does not read them.

On a small machine a client shares the cores with the server that it measures, so it must cost next to nothing: one
thread, one `recv` for each piece that arrives, and only an answer's last bytes are looked at.
"""

import json
import re
import selectors
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep, thread_time
from typing import Any

HOST = "127.0.0.1"
TAIL = 4096  # bytes of an answer's end that are kept
STARTING = 180.0  # seconds in which a server must be ready
WAITING = 600.0  # seconds in which it must answer
HEAD_END = b"\r\n\r\n"
LAST_CHUNK = b"\r\n0\r\n\r\n"


class ServerFailure(Exception):
    """A server that did not start, or answered with something else than was asked for."""


@dataclass
class Address:
    """Where a server listens."""

    port: int


@contextmanager
def serving(command: Sequence[str], name: str) -> Iterator[Address]:
    """A server as a process of its own, ready to answer; ended afterwards. `{port}` in the command is a free one."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    words = [word.replace("{port}", str(port)) for word in command]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until = monotonic() + STARTING
            while not healthy(port):
                if process.poll() is not None or monotonic() > until:
                    log.seek(0)
                    last = (log.read().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
                    raise ServerFailure(f"{name} did not start: {last[:300]}")
                sleep(0.05)
            yield Address(port)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def healthy(port: int) -> bool:
    """Whether a server says that it is ready."""
    try:
        with socket.create_connection((HOST, port), timeout=5) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            return connection.recv(64).split(b" ", 2)[1:2] == [b"200"]
    except OSError:
        return False


def request(path: str, body: dict[str, Any]) -> bytes:
    """The bytes of a POST."""
    data = json.dumps(body, separators=(",", ":")).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return head.encode() + HEAD_END + data


class Reading:
    """An answer that comes in: whether it is whole, and its last bytes."""

    def __init__(self) -> None:
        self.tail = b""
        self.count = 0
        self.num_remaining: int | None = None  # bytes of the body that are to come; None: it comes in chunks
        self.head = b""
        self.in_body = False

    def take(self, data: bytes) -> bool:
        """Take what has arrived; True when it was the last. Raises ServerFailure for any status but 200."""
        self.count += len(data)
        if not self.in_body:
            self.head += data
            before, end, data = self.head.partition(HEAD_END)
            if not end:
                return False
            self.in_body = True
            if before.split(b" ", 2)[1] != b"200":
                raise ServerFailure(f"the server answered {(before + b' ' + data)[:300]!r}")
            length = re.search(rb"\r\ncontent-length: *(\d+)", before, re.IGNORECASE)
            self.num_remaining = int(length[1]) if length else None
            data = b"\r\n" + data if self.num_remaining is None else data
        self.tail = (self.tail + data)[-TAIL:]
        if self.num_remaining is None:
            return self.tail.endswith(LAST_CHUNK)
        self.num_remaining -= len(data)
        return self.num_remaining <= 0

    def tokens(self) -> int:
        """Return the number of generated tokens. Raises ServerFailure if the answer does not contain it."""
        found = re.findall(rb'"completion_tokens": ?(\d+)', self.tail)
        if not found:
            raise ServerFailure(f"the answer does not say how many tokens it has: {self.tail[-300:]!r}")
        return int(found[-1])


@dataclass(frozen=True)
class Together:
    """Answers that were asked for at once: seconds until the last was whole, tokens, and the client's own share of the
    time (of one core)."""

    seconds: float
    tokens: int
    client: float

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


def together(server: Address, requests: Sequence[bytes]) -> Together:
    """Ask all at once, each over a connection of its own that is open before the clock starts."""
    watched = selectors.DefaultSelector()
    connections = [socket.create_connection((HOST, server.port), timeout=WAITING) for _ in requests]
    readings = {connection.fileno(): Reading() for connection in connections}
    try:
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watched.register(connection, selectors.EVENT_READ)
        began = perf_counter()
        own = thread_time()
        for connection, data in zip(connections, requests, strict=True):
            connection.sendall(data)
        waiting = len(connections)
        while waiting:
            ready = watched.select(WAITING)
            if not ready:
                raise ServerFailure(f"nothing came for {WAITING:.0f} s")
            for key, _ in ready:
                data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                if not data:
                    raise ServerFailure("the server closed a connection in the middle of an answer")
                if readings[key.fd].take(data):
                    watched.unregister(key.fileobj)
                    waiting -= 1
        seconds = perf_counter() - began
        client = (thread_time() - own) / seconds
    finally:
        watched.close()
        for connection in connections:
            connection.close()
    return Together(seconds, sum(reading.tokens() for reading in readings.values()), client)


@dataclass(frozen=True)
class Times:
    """Seconds of one answer, from the first byte sent: to its first byte, its first event or body, its end."""

    first_byte: float
    first_event: float
    whole: float


class SingleConnection:
    """One connection that is kept, for one request after the other."""

    def __init__(self, server: Address) -> None:
        self.connection = socket.create_connection((HOST, server.port), timeout=WAITING)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self.connection.close()

    def ask(self, data: bytes) -> tuple[Times, Reading]:
        """One answer."""
        reading = Reading()
        first_byte = 0.0
        first_event = 0.0
        began = perf_counter()
        self.connection.sendall(data)
        done = False
        while not done:
            arrived = self.connection.recv(65536)
            now = perf_counter() - began
            if not arrived:
                raise ServerFailure("the server closed a connection that was to be kept")
            done = reading.take(arrived)
            first_byte = first_byte or now
            if not first_event and reading.in_body and len(reading.tail) > 2:
                first_event = now
        return Times(first_byte, first_event, now), reading


def model_file(path: Path) -> Path:
    """A GGUF file, which the peer can read too. Raises ServerFailure."""
    if path.suffix != ".gguf":
        raise ServerFailure(f"{path.name!r} is not a .gguf file: llama-server reads no other format")
    return path
