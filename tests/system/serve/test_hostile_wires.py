"""Bytes that attackers send: requests hidden in others, heads and bodies that never end, too many connections."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from system.serve.running_server import Running
from system.serve.slow_models import wait_until

Serve = Callable[..., Running]
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
HIDDEN = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"


def said_to(port: int, data: bytes, seconds: float = 60, *, ends: bool = True) -> bytes:
    """Return the server's reply to some bytes, up to the end of the connection; `ends`: the client's end is closed at
    once, and the server does not reply if it sees that before it begins to."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection, suppress(OSError):
        connection.sendall(data)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            found += piece
    return found


@contextmanager
def impatient(running: Running) -> Iterator[None]:
    """A while in which a server waits for no head or body; the others, that are slow by chance, have their time."""
    patience = {name: getattr(running.config, name) for name in ("head_seconds", "body_seconds")}
    for name in patience:
        object.__setattr__(running.config, name, 0.4)
    yield
    for name, seconds in patience.items():
        object.__setattr__(running.config, name, seconds)


@pytest.fixture(autouse=True)
def unharmed(served: Running) -> Iterator[None]:
    yield
    assert served.client().get("/health").status_code == 200
    wait_until(served.engine_idle)


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: identity\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n",
        b"transfer-encoding : chunked\r\n",
        b"transfer-encoding:\x0bchunked\r\n",
        b"transfer-encoding\x00: chunked\r\n",
        b"content-length: 4\r\ncontent-length: 44\r\n",
        b"content-length: 4, 44\r\n",
        b"content-length: +4\r\n",
        b"content-length: -4\r\n",
        b"content-length: 0x4\r\n",
        b"content-length: 4 4\r\n",
        b"content-length: 18446744073709551620\r\n",
        b" content-length: 4\r\n",
        b"x: y\n content-length: 4\n\n",
        b"x: y\rcontent-length: 4\r\n",
    ],
    ids=repr,
)
def test_no_request_is_hidden_in_another(served: Running, head: bytes) -> None:
    for body in (b"0\r\n\r\n" + HIDDEN, b"{}  " + HIDDEN):
        said = said_to(served.port, POST + head + b"\r\n" + body)
        assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")) or not said, said[:80]
        assert said.count(b"HTTP/1.1 ") <= 1
        assert b'"data"' not in said


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"4\r\n{}  0\r\n\r\n", b"4;" + b"x" * 100_000,
        b"1\r\n{\r\n" * 3 + b"0\r\n" + b"x: 1\r\n" * 20_000,
    ],
    ids=lambda each: repr(each[:20]),
)  # fmt: skip
def test_chunks_that_are_none_are_refused(served: Running, body: bytes) -> None:
    said = said_to(served.port, POST + b"transfer-encoding: chunked\r\n\r\n" + body + b"\r\n" + HIDDEN)
    assert said.startswith(b"HTTP/1.1 4") or not said, said[:80]
    assert b'"data"' not in said


@pytest.mark.parametrize(
    "data",
    [
        b"GET /v1/models\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"TRACE /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET http://evil.example/v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nhost: localhost\r\n\r\n",
        b"get /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/mo dels HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET \\v1\\models HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: local\x00host\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,
        b"\0" * 1000,
        b"\r\n" * 5000,
    ],
    ids=lambda each: repr(each[:30]),
)
def test_invalid_requests_are_refused(served: Running, data: bytes) -> None:
    said = said_to(served.port, data)
    assert said.startswith(b"HTTP/1.1 4") or not said, said[:80]
    assert b'"data"' not in said


def test_a_request_has_one_host(served: Running) -> None:
    for hosts in (b"", b"host: localhost\r\nhost: localhost\r\n"):
        said = said_to(served.port, b"GET /health HTTP/1.1\r\n" + hosts + b"connection: close\r\n\r\n", ends=False)
        assert said.startswith(b"HTTP/1.1 400")
        assert b"wrong_host" in said


def test_heads_and_bodies_that_trickle_are_cut(served: Running) -> None:
    """A byte now and then does not win time: the whole of it must be there."""
    body = b'{"prompt": "Lily"' + b" " * 200 + b"}"
    for data in (POST + b"x: " + b"a" * 500, POST + b"content-length: %d\r\n\r\n" % len(body) + body):
        sent, quickly = 0, len(POST) if b"\r\n\r\n" not in data else data.index(b"{")
        with (
            impatient(served),
            socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection,
            suppress(OSError),
        ):
            connection.sendall(data[:quickly])
            for sent in range(quickly, len(data)):
                connection.sendall(data[sent : sent + 1])
                connection.settimeout(0.05)
                with suppress(TimeoutError):
                    if connection.recv(100)[:12] in (b"", b"HTTP/1.1 408"):
                        break
        assert sent < quickly + 150, "it was waited for"  # which takes 7.5 s


def test_requests_in_a_row_are_answered_in_their_order(served: Running) -> None:
    asked = [json.dumps({"prompt": "Lily " * count}).encode() for count in (1, 5, 2)]
    head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    last = b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    said = said_to(served.port, b"".join(head % len(body) + body for body in asked) + last, ends=False)
    assert [each[:3] for each in said.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"200", b"404"]
    counts = [int(each.split(b'"count":')[1].split(b",")[0]) for each in said.split(b"HTTP/1.1 ")[1:4]]
    assert counts[0] < counts[2] < counts[1]


def test_one_connection_too_many_is_told_so_and_the_others_go_on(serve: Serve) -> None:
    running = serve(max_connections=3)
    ask = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    clients = [running.client() for _ in range(3)]  # each keeps its connection
    for _ in range(2):
        assert [client.get("/v1/models").status_code for client in clients] == [200] * 3
        for _ in range(10):
            said = said_to(running.port, ask)
            assert said.startswith(b"HTTP/1.1 503") or not said
            assert b"max_connections" in said or not said
    for client in clients:
        client.close()
    wait_until(lambda: said_to(running.port, ask, ends=False).startswith(b"HTTP/1.1 200"))


def test_a_flood_of_heads_that_are_never_finished_leaves_room(served: Running) -> None:
    client = served.client()
    client.get("/health")  # it is connected, and so not one of those who are slow
    connections = served.listener.server_state.connections
    before = len(connections)
    with impatient(served), ExitStack() as stack:
        for _ in range(60):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 60))
            connection.sendall(POST[:40])
        assert client.get("/health").status_code == 200
        wait_until(lambda: len(connections) <= before)
