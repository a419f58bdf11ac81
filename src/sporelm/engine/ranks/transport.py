"""Connections between ranks: framed messages over unix sockets and TCP, authenticated in both directions.

Both sides have the same secret, the token. Each proves that by an HMAC-SHA256 over both sides' random nonces, under
labels that differ by role, so that a proof cannot be sent back. The nonces also give the keys of the connection, one
for each direction. Every frame has the HMAC of its number, its length and its bytes: frames cannot be changed, left
out, repeated or moved to another connection. The length has an HMAC of its own: memory for a payload is allocated only
for a peer that has the key. Frames are not encrypted, unless both sides use TLS.

    frame    length (uint32), HMAC of number and length (32 bytes), payload, HMAC (32 bytes)
    server   MAGIC, nonce (32 bytes)
    client   MAGIC, nonce, HMAC(token, "client", both nonces)
    server   HMAC(token, "server", both nonces), or REFUSED
"""

import hmac
import logging
import os
import select
import socket
import ssl
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from secrets import token_hex
from time import monotonic

from sporelm.engine.ranks.messages import MAX_MESSAGE_BYTES
from sporelm.engine.ranks.rank_address import RankAddress
from sporelm.errors import BackendError, RequestError, safe_repr

log = logging.getLogger(__name__)

MAGIC = b"sporelm-ranks-2\n"
NONCE_BYTES = MAC_BYTES = 32
MIN_TOKEN_CHARS, MAX_TOKEN_CHARS = 32, 4096
REFUSED = bytes(MAC_BYTES)  # the server's answer to a wrong token
HANDSHAKE_SECONDS = 5.0  # with TLS
MAX_PENDING_PEERS = 16  # of one IP address, that are not authenticated yet; more are disconnected
MAX_PENDING_THREADS = 256  # of all addresses
JOINED_BYTES = 1 << 16  # frames up to this size are sent with one call
KEEPALIVE_SECONDS = 5  # of silence before the system probes a peer on another host, and between two probes
# The worker always has heartbeats on the way, so keepalive never probes: this ends its connection to a vanished host.
UNACKNOWLEDGED_SECONDS = 15
UNACKNOWLEDGED_OPTION = {  # of TCP, by platform: its number, and its unit in a second
    "linux": (18, 1000),  # TCP_USER_TIMEOUT
    "darwin": (0x80, 1),  # TCP_RXT_CONNDROPTIME
    "win32": (5, 1),  # TCP_MAXRT
}
LENGTH = struct.Struct("<I")
NUMBER = struct.Struct("<QI")  # of a frame, and its length
HEAD_BYTES = LENGTH.size + MAC_BYTES
DIGEST = "sha256"


class ConnectionLost(BackendError):
    """The other side has closed the connection, or its frames are not valid."""


class TokenRefused(ConnectionLost):
    """The two sides have different tokens."""


def new_token() -> str:
    """Return a new secret."""
    return token_hex(32)


def read_token(path: Path) -> str:
    """Return the secret in a file. Raises RequestError for a file that others may read, or one that is too short."""
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as reason:
        raise RequestError(f"token file {str(path)!r:.200}: cannot be read ({reason}). Correct the path.") from None
    if sys.platform != "win32" and mode & 0o077:
        raise RequestError(f"token file {str(path)!r:.200}: other users may read it. Run chmod 600 on it.")
    check_token(token)
    return token


def read_or_create_token(path: Path) -> tuple[str, bool]:
    """Return the secret in a file, and whether it was created now, with mode 0600. Raises like `read_token`."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path), False
    except OSError as reason:
        raise RequestError(f"token file {str(path)!r:.200}: cannot be created ({reason}). Correct the path.") from None
    token = new_token()
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    return token, True


def check_token(token: str) -> None:
    """Raise RequestError for a secret that could be found by trying."""
    if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS:
        raise RequestError(
            f"token: wrong length (got {len(token)} characters; allowed {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS}). "
            "Make one with: python -c 'import secrets; print(secrets.token_hex(32))'"
        )


class Connection:
    """An authenticated connection. One thread receives; any thread sends."""

    def __init__(self, stream: socket.socket, send_key: bytes, receive_key: bytes, peer: str) -> None:
        stream.setblocking(False)
        self.peer = peer
        self.last_received = monotonic()  # when bytes of the other side came
        self._stream = stream
        self._keys = send_key, receive_key
        self._num_sent = self._num_received = 0
        self._sending = threading.Lock()
        # A TLS stream must not be used by two threads at once.
        self._using = threading.Lock() if isinstance(stream, ssl.SSLSocket) else _NO_LOCK
        self._frame = bytearray(HEAD_BYTES)  # that is being received
        self._filled = 0
        self._length: int | None = None  # of its payload, once known
        self._closed = False

    @property
    def local_host(self) -> str:
        """The IP address of this side; "" for a unix socket."""
        place = self._stream.getsockname()
        return str(place[0]) if self._stream.family in (socket.AF_INET, socket.AF_INET6) else ""

    def send(self, payload: bytes) -> None:
        """Send a frame. Raises ConnectionLost."""
        with self._sending:
            head = NUMBER.pack(self._num_sent, len(payload))
            self._num_sent += 1
            begin = head[8:] + _authenticate_head(self._keys[0], head)
            tag = _authenticate(self._keys[0], head, payload)
            if len(payload) <= JOINED_BYTES:
                self._write(begin + payload + tag)
            else:
                for part in (begin, payload, tag):
                    self._write(part)

    def receive(self, seconds: float | None = None) -> memoryview | None:
        """Return the payload of the next frame; None if it is not complete after `seconds`. Raises ConnectionLost."""
        deadline = None if seconds is None else monotonic() + seconds
        while True:
            if self._filled < len(self._frame):
                if not self._read(deadline):
                    return None
                continue
            if self._length is None:
                (length,) = LENGTH.unpack_from(self._frame)
                tag = _authenticate_head(self._keys[1], NUMBER.pack(self._num_received, length))
                if not hmac.compare_digest(tag, self._frame[LENGTH.size :]):
                    raise self._fail("a frame that is not authentic")
                if length > MAX_MESSAGE_BYTES:
                    raise self._fail(f"a frame of {length} bytes, allowed are {MAX_MESSAGE_BYTES}")
                self._length, self._frame, self._filled = length, bytearray(length + MAC_BYTES), 0
                continue
            frame, length = memoryview(self._frame), self._length
            self._frame, self._filled, self._length = bytearray(HEAD_BYTES), 0, None
            head = NUMBER.pack(self._num_received, length)
            self._num_received += 1
            if not hmac.compare_digest(_authenticate(self._keys[1], head, frame[:length]), frame[length:]):
                raise self._fail("a frame that is not authentic")
            return frame[:length]

    def shut_down(self) -> None:
        """End the connection: threads that send or receive raise ConnectionLost. Any thread may call this."""
        self._closed = True
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket, once no thread uses it."""
        self.shut_down()
        self._stream.close()

    def _fail(self, reason: str) -> ConnectionLost:
        self.shut_down()
        return ConnectionLost(f"{self.peer} sent {reason}")

    def _read(self, deadline: float | None) -> bool:
        """Receive some bytes of the frame; False if none come until the deadline."""
        view = memoryview(self._frame)[self._filled :]
        is_reading = True
        while True:
            try:
                with self._using:
                    count = self._stream.recv_into(view)
            except (BlockingIOError, ssl.SSLWantReadError):
                is_reading = True
            except ssl.SSLWantWriteError:
                is_reading = False
            except (OSError, ValueError) as reason:
                raise ConnectionLost(f"{self.peer}: connection lost ({reason})") from None
            else:
                if not count:
                    raise ConnectionLost(f"{self.peer}: connection closed")
                self._filled += count
                self.last_received = monotonic()
                return True
            if not self._wait(is_reading, deadline):
                return False

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            is_reading = False
            try:
                with self._using:
                    view = view[self._stream.send(view) :]
                continue
            except (BlockingIOError, ssl.SSLWantWriteError):
                pass
            except ssl.SSLWantReadError:
                is_reading = True
            except (OSError, ValueError) as reason:
                raise ConnectionLost(f"{self.peer}: connection lost ({reason})") from None
            self._wait(is_reading, None)

    def _wait(self, is_reading: bool, deadline: float | None) -> bool:
        """Wait until the socket can be used; False at the deadline. Raises ConnectionLost after `shut_down`."""
        seconds = None if deadline is None else deadline - monotonic()
        if self._closed:
            raise ConnectionLost(f"{self.peer}: connection closed")
        if seconds is not None and seconds <= 0:
            return False
        try:
            return wait_for(self._stream, is_reading, seconds)
        except (OSError, ValueError) as reason:
            raise ConnectionLost(f"{self.peer}: connection lost ({reason})") from None


class _NoLock:
    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *error: object) -> None:
        """Do nothing."""


_NO_LOCK = _NoLock()


def wait_for(stream: socket.socket, is_reading: bool, seconds: float | None) -> bool:
    """Wait until a socket can be read from or written to; False after `seconds`."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(stream, select.POLLIN if is_reading else select.POLLOUT)
        return bool(poll.poll(None if seconds is None else int(seconds * 1000) + 1))
    readers, writers = ([stream], []) if is_reading else ([], [stream])
    found = select.select(readers, writers, [], seconds)
    return bool(found[0] or found[1])


def _authenticate_head(key: bytes, head: bytes) -> bytes:
    return hmac.digest(key, b"length" + head, DIGEST)


def _authenticate(key: bytes, head: bytes, payload: bytes | memoryview) -> bytes:
    if len(payload) <= JOINED_BYTES:
        return hmac.digest(key, head + bytes(payload), DIGEST)
    digest = hmac.new(key, head, DIGEST)
    digest.update(payload)
    return digest.digest()


# ---- the handshake


def _prove(token: str, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), role + MAGIC + server_nonce + client_nonce, DIGEST)


def accept_handshake(stream: socket.socket, token: str, peer: str, deadline: float | None = None) -> Connection:
    """Authenticate a peer that has connected, and prove to it that this side has the token. Raises ConnectionLost."""
    deadline = monotonic() + HANDSHAKE_SECONDS if deadline is None else deadline
    server_nonce = os.urandom(NONCE_BYTES)
    _send_all(stream, MAGIC + server_nonce, deadline, peer)
    answer = _receive_exactly(stream, len(MAGIC) + NONCE_BYTES + MAC_BYTES, deadline, peer)
    magic, client_nonce, proof = _split(answer)
    expected = _prove(token, b"client", server_nonce, client_nonce)
    if magic != MAGIC:
        raise ConnectionLost(f"{peer}: is not a worker of this version")
    if not hmac.compare_digest(proof, expected):
        _send_all(stream, REFUSED, deadline, peer)
        raise TokenRefused(f"{peer}: does not have this token")
    _send_all(stream, _prove(token, b"server", server_nonce, client_nonce), deadline, peer)
    keys = [_prove(token, role, server_nonce, client_nonce) for role in (b"from-server", b"from-client")]
    return Connection(stream, keys[0], keys[1], peer)


def begin_handshake(stream: socket.socket, token: str, peer: str) -> Connection:
    """Prove to the peer that was connected to that this side has the token, and authenticate it. Raises
    ConnectionLost, TokenRefused."""
    deadline = monotonic() + HANDSHAKE_SECONDS
    greeting = _receive_exactly(stream, len(MAGIC) + NONCE_BYTES, deadline, peer)
    if greeting[: len(MAGIC)] != MAGIC:
        raise ConnectionLost(f"{peer}: is not a sporelm server for ranks, or one of another version")
    server_nonce, client_nonce = greeting[len(MAGIC) :], os.urandom(NONCE_BYTES)
    proof = _prove(token, b"client", server_nonce, client_nonce)
    _send_all(stream, MAGIC + client_nonce + proof, deadline, peer)
    answer = _receive_exactly(stream, MAC_BYTES, deadline, peer)
    if answer == REFUSED:
        raise TokenRefused(f"{peer}: refused this token")
    if not hmac.compare_digest(answer, _prove(token, b"server", server_nonce, client_nonce)):
        raise TokenRefused(f"{peer}: does not have this token")
    keys = [_prove(token, role, server_nonce, client_nonce) for role in (b"from-client", b"from-server")]
    return Connection(stream, keys[0], keys[1], peer)


def _split(answer: bytes) -> tuple[bytes, bytes, bytes]:
    magic, rest = answer[: len(MAGIC)], answer[len(MAGIC) :]
    return magic, rest[:NONCE_BYTES], rest[NONCE_BYTES:]


def _receive_exactly(stream: socket.socket, count: int, deadline: float, peer: str) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            stream.settimeout(max(0.001, deadline - monotonic()))
            more = stream.recv(count - len(data))
        except OSError as reason:
            raise ConnectionLost(f"{peer}: handshake failed ({reason})") from None
        if not more:
            raise ConnectionLost(f"{peer}: closed the connection during the handshake")
        data += more
    return bytes(data)


def _send_all(stream: socket.socket, data: bytes, deadline: float, peer: str) -> None:
    try:
        stream.settimeout(max(0.001, deadline - monotonic()))
        stream.sendall(data)
    except OSError as reason:
        raise ConnectionLost(f"{peer}: handshake failed ({reason})") from None


# ---- both ends


class RankListener:
    """Accepts connections and authenticates them, each in a thread, so that a silent peer delays no other."""

    def __init__(
        self,
        address: RankAddress,
        token: str,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind and listen. Raises RequestError for a public address or one that cannot be bound."""
        check_token(token)
        family, place = address.resolve()
        self._token, self._tls = token, tls
        self._stream = socket.socket(family, socket.SOCK_STREAM)
        try:
            if not address.path and sys.platform != "win32":
                self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._stream.bind(place)
            self._stream.listen(4 * MAX_PENDING_PEERS)
        except OSError as reason:
            self._stream.close()
            raise RequestError(f"address {address}: cannot bind ({reason.strerror}). Name another one.") from None
        self._path = address.path
        port = 0 if address.path else self._stream.getsockname()[1]
        self.address = RankAddress(address.host, port, address.path)
        self._accepted: SimpleQueue[Connection] = SimpleQueue()
        self._pending: Counter[str] = Counter()  # peers in their handshake, by IP address
        self._changing = threading.Lock()
        self._greeting: bytes | None = None
        self._closed = False
        self.num_refused = 0
        self._thread = threading.Thread(target=self._run, name="rank-listener", daemon=True)
        self._thread.start()

    def accept(self, seconds: float) -> Connection | None:
        """Return the next authenticated connection; None if there is none after `seconds`."""
        try:
            return self._accepted.get(timeout=max(0.0, seconds))
        except Empty:
            return None

    def greet(self, payload: bytes | None) -> None:
        """Send this to each peer that waits to be accepted, or connects from now on; None: to none."""
        with self._changing:
            self._greeting = payload
            if payload is None:
                return
            waiting: list[Connection] = []
            while (connection := self.accept(0)) is not None:
                waiting.append(connection)
            for connection in waiting:
                self._put(connection)

    def _put(self, connection: Connection) -> None:
        """Queue a connection, after the greeting. The caller holds the lock."""
        if self._greeting is not None:
            try:
                connection.send(self._greeting)
            except ConnectionLost:
                connection.close()
                return
            log.warning("ranks: %s has joined, and no rank is free: it waits as a spare", connection.peer)
        self._accepted.put(connection)

    def close(self) -> None:
        """Stop listening, and close connections that were not fetched."""
        self._closed = True
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)  # wakes the thread on Linux
        with suppress(OSError):
            wake_up = socket.socket(self._stream.family, socket.SOCK_STREAM)  # and elsewhere
            wake_up.settimeout(0.2)
            with wake_up:
                wake_up.connect(self._stream.getsockname())
        self._stream.close()
        self._thread.join(1.0)
        if self._path:
            with suppress(OSError):
                os.unlink(self._path)
        while (connection := self.accept(0)) is not None:
            connection.close()

    def _run(self) -> None:
        while not self._closed:
            try:
                stream, place = self._stream.accept()
            except OSError:
                return
            host = str(place[0]) if isinstance(place, tuple) and place else ""
            if self._closed or not self._begin_pending(host):
                stream.close()
                continue
            peer = f"{host}:{place[1]}" if host else "a local process"
            words = (stream, host, peer)
            threading.Thread(target=self._authenticate, args=words, name="rank-handshake", daemon=True).start()

    def _begin_pending(self, host: str) -> bool:
        """Count a peer that begins its handshake; False if too many are in it. A unix socket is in a private folder."""
        with self._changing:
            if self._pending.total() >= MAX_PENDING_THREADS or (host and self._pending[host] >= MAX_PENDING_PEERS):
                return False
            self._pending[host] += 1
            return True

    def _end_pending(self, host: str) -> None:
        with self._changing:
            self._pending[host] -= 1
            if not self._pending[host]:
                del self._pending[host]

    def _authenticate(self, stream: socket.socket, host: str, peer: str) -> None:
        deadline = monotonic() + HANDSHAKE_SECONDS
        try:
            if self._tls is not None:
                stream.settimeout(HANDSHAKE_SECONDS)
                stream = self._tls.wrap_socket(stream, server_side=True)
            _set_options(stream)
            connection = accept_handshake(stream, self._token, peer, deadline)
        except (ConnectionLost, OSError) as reason:
            stream.close()
            self.num_refused += 1
            log.warning("ranks: refused a connection: %s", reason)
        else:
            with self._changing:
                self._put(connection)
            if self._closed:
                connection.close()
        finally:
            self._end_pending(host)


def connect(
    address: RankAddress, token: str, *, tls: ssl.SSLContext | None = None, allow_public: bool = False
) -> Connection:
    """Connect to a `RankListener`. Raises RequestError for a public address, ConnectionLost if that fails."""
    check_token(token)
    family, place = address.resolve(allow_public=allow_public)
    stream = socket.socket(family, socket.SOCK_STREAM)
    try:
        stream.settimeout(HANDSHAKE_SECONDS)
        stream.connect(place)
        if tls is not None:
            stream = tls.wrap_socket(stream, server_hostname=address.host)
        _set_options(stream)
        return begin_handshake(stream, token, str(address))
    except OSError as reason:
        stream.close()
        raise ConnectionLost(f"{address}: cannot connect ({reason})") from None
    except BaseException:
        stream.close()
        raise


def _set_options(stream: socket.socket) -> None:
    """Send small frames at once, and have the system notice a peer whose host has vanished."""
    if stream.family not in (socket.AF_INET, socket.AF_INET6):
        return
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", KEEPALIVE_SECONDS), ("TCP_KEEPINTVL", KEEPALIVE_SECONDS), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    number, unit = UNACKNOWLEDGED_OPTION.get(sys.platform, (0, 0))
    if unit:
        with suppress(OSError):
            stream.setsockopt(socket.IPPROTO_TCP, number, UNACKNOWLEDGED_SECONDS * unit)


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS settings of the side that listens. Raises RequestError for files that cannot be used."""
    return _load_tls(lambda: _server_context(certificate, key), f"{certificate} and {key}")


def client_tls(authorities: Path) -> ssl.SSLContext:
    """Return the TLS settings of a worker: the server's certificate must be signed by one of `authorities`."""
    return _load_tls(lambda: ssl.create_default_context(cafile=str(authorities)), str(authorities))


def _server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    return context


def _load_tls(load: Callable[[], ssl.SSLContext], files: str) -> ssl.SSLContext:
    try:
        return load()
    except (OSError, ssl.SSLError) as reason:
        raise RequestError(f"TLS: cannot use {safe_repr(files, 200)} ({reason}). Correct the files.") from None
