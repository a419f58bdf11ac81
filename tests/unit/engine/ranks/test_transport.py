"""Connections: both sides prove that they have the token; changed, repeated and foreign frames end the connection."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.engine.ranks import transport
from sporelm.engine.ranks.rank_address import RankAddress
from sporelm.engine.ranks.transport import Connection, ConnectionLost, RankListener, TokenRefused, connect
from sporelm.errors import RequestError

TOKEN = "t" * 40


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RankListener]:
    if request.param == "unix" and not hasattr(socket, "AF_UNIX"):
        pytest.skip("no unix sockets here")
    path = f"unix:{tmp_path / 's'}"
    place = RankAddress.parse(path if request.param == "unix" else "127.0.0.1:0")
    found = RankListener(place, TOKEN)
    yield found
    found.close()


def pair(listener: RankListener) -> tuple[Connection, Connection]:
    client = connect(listener.address, TOKEN)
    server = listener.accept(5)
    assert server is not None
    return server, client


def test_frames_arrive_in_both_directions(listener: RankListener) -> None:
    server, client = pair(listener)
    big = os.urandom(3 << 20)
    sender = threading.Thread(target=lambda: [client.send(each) for each in (b"", b"a", big, b"end")])
    sender.start()
    assert [bytes(server.receive(5) or b"-") for _ in range(4)] == [b"-", b"a", big, b"end"]
    sender.join()
    server.send(b"back")
    assert bytes(client.receive(5) or b"") == b"back"
    assert client.receive(0.01) is None
    for each in (server, client):
        each.close()


def test_the_end_of_a_connection_is_noticed(listener: RankListener) -> None:
    server, client = pair(listener)
    client.close()
    with pytest.raises(ConnectionLost, match="closed"):
        server.receive(5)
    with pytest.raises(ConnectionLost):
        send_many(server)
    server.close()


def send_many(connection: Connection) -> None:
    for _ in range(100):
        connection.send(b"x" * 1000)


def receive_all(connection: Connection) -> None:
    while True:
        connection.receive(5)


def test_shut_down_ends_a_wait(listener: RankListener) -> None:
    server, client = pair(listener)
    threading.Timer(0.1, server.shut_down).start()
    with pytest.raises(ConnectionLost):
        server.receive()
    client.close()
    server.close()


def test_spare_peers_are_greeted(listener: RankListener, caplog: pytest.LogCaptureFixture) -> None:
    early = connect(listener.address, TOKEN)
    deadline = monotonic() + 30
    while listener._accepted.empty():
        assert monotonic() < deadline
    listener.greet(b"spare")
    late = connect(listener.address, TOKEN)
    for client in (early, late):
        assert client.receive(5) == b"spare"
    while caplog.text.count("no rank is free: it waits as a spare") < 2:  # it is noted after the greeting
        assert monotonic() < deadline
    listener.greet(None)
    last = connect(listener.address, TOKEN)
    servers = [listener.accept(5) for _ in range(3)]
    assert last.receive(0.05) is None
    for each in (early, late, last, *servers):
        assert each is not None
        each.close()


def test_a_wrong_token_is_refused(listener: RankListener) -> None:
    with pytest.raises(TokenRefused, match="refused this token"):
        connect(listener.address, "u" * 40)
    assert listener.accept(0.05) is None
    assert listener.num_refused == 1
    for each in pair(listener):
        each.close()


def test_a_server_without_the_token_is_refused() -> None:
    server, client = socket.socketpair()

    def pretend() -> None:
        server.sendall(transport.MAGIC + bytes(32))
        answer = transport._receive_exactly(server, len(transport.MAGIC) + 64, monotonic() + 5, "client")
        server.sendall(answer[-32:])  # the client's own proof

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(ConnectionLost, match="does not have this token"):
        transport.begin_handshake(client, TOKEN, "server")
    thread.join()
    server.close()
    client.close()


def connected() -> tuple[Connection, socket.socket]:
    """A connection, and the socket of its other side, which has the keys of no one."""
    ours, theirs = socket.socketpair()
    return Connection(ours, b"a" * 32, b"b" * 32, "peer"), theirs


def frames(*payloads: bytes) -> list[bytes]:
    """The frames of payloads, as the other side of `connected` would send them."""
    ours, theirs = socket.socketpair()
    sender, found = Connection(ours, b"b" * 32, b"a" * 32, "peer"), []
    for payload in payloads:
        sender.send(payload)
        found.append(theirs.recv(1 << 20))
    ours.close()
    theirs.close()
    return found


@pytest.mark.parametrize("case", ["repeated", "left out", "swapped", "changed", "cut"])
def test_frames_of_others_end_the_connection(case: str) -> None:
    first, second, third = frames(b"one", b"two", b"three")
    data = {
        "repeated": first + first,
        "left out": first + third,
        "swapped": second + first,
        "changed": first[: transport.HEAD_BYTES] + b"X" + first[transport.HEAD_BYTES + 1 :],
        "cut": first[:-1] + second,
    }[case]
    connection, other = connected()
    other.sendall(data)
    other.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost):
        receive_all(connection)
    connection.close()
    other.close()


@given(st.binary(min_size=1, max_size=400))
def test_random_bytes_end_the_connection(data: bytes) -> None:
    connection, other = connected()
    other.sendall(data)
    other.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost):
        connection.receive(5)
    connection.close()
    other.close()


@given(st.binary(max_size=200))
def test_random_bytes_in_place_of_a_handshake_are_refused(data: bytes) -> None:
    server, other = socket.socketpair()
    other.sendall(data)
    other.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost):
        transport.accept_handshake(server, TOKEN, "peer")
    server.close()
    other.close()


def test_memory_is_not_allocated_for_a_length_that_is_not_authentic() -> None:
    connection, other = connected()
    other.sendall(transport.LENGTH.pack(transport.MAX_MESSAGE_BYTES) + bytes(transport.MAC_BYTES))
    with pytest.raises(ConnectionLost, match="not authentic"):
        connection.receive(1)
    assert len(connection._frame) < 1000
    connection.close()
    other.close()


def connect_silently(address: RankAddress, count: int, source: str = "") -> list[socket.socket]:
    """Return sockets that connect, and do not speak."""
    family, place = address.resolve()
    found = []
    for _ in range(count):
        stream = socket.socket(family, socket.SOCK_STREAM)
        stream.settimeout(5)
        if source:
            stream.bind((source, 0))
        stream.connect(place)
        found.append(stream)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of Linux only")
def test_silent_peers_of_one_address_delay_no_other() -> None:
    listener = RankListener(RankAddress.parse("127.0.0.1:0"), TOKEN)
    silent = connect_silently(listener.address, transport.MAX_PENDING_PEERS + 4, "127.0.0.2")
    for stream in silent[-4:]:  # these are disconnected
        while stream.recv(100):
            pass
    began = monotonic()
    for each in pair(listener):
        each.close()
    assert monotonic() - began < transport.HANDSHAKE_SECONDS / 2
    for stream in silent:
        stream.close()
    listener.close()


def test_local_processes_may_connect_at_the_same_time(tmp_path: Path) -> None:
    if not hasattr(socket, "AF_UNIX"):
        pytest.skip("no unix sockets here")
    listener = RankListener(RankAddress.parse(f"unix:{tmp_path / 's'}"), TOKEN)
    slow = connect_silently(listener.address, transport.MAX_PENDING_PEERS + 4)
    for each in pair(listener):
        each.close()
    for stream in slow:
        stream.close()
    listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads an option of Linux")
def test_a_vanished_host_is_noticed_by_what_it_does_not_acknowledge() -> None:
    listener = RankListener(RankAddress.parse("127.0.0.1:0"), TOKEN)
    for each in pair(listener):
        option = each._stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert 5000 <= option <= 20000
        each.close()
    listener.close()


def test_token_files(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token, is_new = transport.read_or_create_token(path)
    assert is_new
    assert transport.read_or_create_token(path) == (token, False)
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
        with pytest.raises(RequestError, match="chmod 600"):
            transport.read_token(path)
        path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(RequestError, match="wrong length"):
        transport.read_token(path)
    with pytest.raises(RequestError, match="cannot be read"):
        transport.read_token(tmp_path / "none")


def test_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost", "-days", "2"]
    try:
        subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl that makes certificates")
    address = RankAddress.parse("localhost:0")
    listener = RankListener(address, TOKEN, tls=transport.server_tls(certificate, key))
    try:
        client = connect(listener.address, TOKEN, tls=transport.client_tls(certificate))
        server = listener.accept(5)
        assert server is not None
        big = os.urandom(1 << 20)
        threads = [threading.Thread(target=each.send, args=(big,)) for each in (client, server)]
        for thread in threads:
            thread.start()
        assert bytes(server.receive(10) or b"") == big
        assert bytes(client.receive(10) or b"") == big
        for thread in threads:
            thread.join()
        client.close()
        server.close()
        with pytest.raises(ConnectionLost):
            connect(listener.address, TOKEN)
    finally:
        listener.close()
    with pytest.raises(RequestError, match="TLS"):
        transport.server_tls(key, tmp_path / "none")
