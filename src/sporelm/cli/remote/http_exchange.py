"""One HTTP request and its response, received in a thread, so that the caller can stop it at any time."""

import contextlib
import http.client
import queue
import socket
import ssl
import struct
import sys
import threading
from base64 import b64encode
from collections.abc import Generator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sporelm import __version__
from sporelm.cli.remote.server_address import ServerAddress
from sporelm.errors import RemoteError, safe_repr

CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0  # maximum time between two pieces of a response
POLL_SECONDS = 0.1  # interval at which the caller can stop
MAX_PIECE_BYTES = 64 << 10
MAX_QUEUED_PIECES = 64
# SO_LINGER on, with 0 seconds: resets the connection, so that a server blocked in writing notices at once. After a
# normal close it may notice a minute later.
RESET_ON_CLOSE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


class ResponseHead(NamedTuple):
    """The status and headers of a response."""

    status: int
    headers: Mapping[str, str]  # names in lower case


class HttpExchange:
    """Yields the head of a response, then its body in pieces. `close` ends it at any time; the server notices at once.

    Set `is_complete` once everything needed has arrived; then `close` does not reset the connection.
    """

    def __init__(
        self, address: ServerAddress, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> None:
        """Prepare a POST of `body`, or a GET without one."""
        self.address = address
        self.path = path
        self.body = body
        self.headers = {"User-Agent": f"sporelm/{__version__}", "Connection": "close", **headers}
        self.is_complete = False
        self._socket: socket.socket | None = None
        self._parts: queue.Queue[ResponseHead | bytes | Exception | None] = queue.Queue(MAX_QUEUED_PIECES)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="request", daemon=True)

    def receive(self) -> Generator[ResponseHead | bytes | None, None, None]:
        """Yield the head, then bytes; None whenever nothing came for a moment. Raises RemoteError."""
        self._thread.start()
        try:
            while True:
                try:
                    part = self._parts.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    yield None
                    continue
                if part is None:
                    return
                if isinstance(part, Exception):
                    is_connected = self._socket is not None
                    raise RemoteError(describe_failure(part, self.address, is_connected=is_connected)) from part
                yield part
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection. A DNS lookup that is still running is left to the daemon thread."""
        self._closed.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                if not self.is_complete:
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes the socket
        if self._thread.ident is not None:
            self._thread.join(1)

    def _run(self) -> None:
        """Send the request and queue the response. Runs in the thread."""
        try:
            connection, target, proxy_headers = create_connection(self.address, self.path)
            with contextlib.closing(connection):
                connection.connect()
                self._socket = connection.sock
                self._socket.settimeout(READ_SECONDS)
                if self._closed.is_set():
                    return
                method = "GET" if self.body is None else "POST"
                connection.request(method, target, self.body, self.headers | proxy_headers)
                with connection.getresponse() as response:
                    headers = {name.lower(): value for name, value in response.getheaders()}
                    self._put(ResponseHead(response.status, headers))
                    while not self._closed.is_set() and (data := response.read1(MAX_PIECE_BYTES)):
                        self._put(data)
                    if response.length:  # the body was shorter than announced, which http.client does not report
                        raise http.client.IncompleteRead(b"", response.length)
            self._put(None)
        except Exception as error:
            self._put(error)

    def _put(self, part: ResponseHead | bytes | Exception | None) -> None:
        """Queue a part for the caller; wait while the queue is full, unless the exchange is closed."""
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                return self._parts.put(part, timeout=POLL_SECONDS)


def create_connection(address: ServerAddress, path: str) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Return a connection that is not open yet, its request target, and the headers for a proxy. Raises RemoteError.

    The connection goes through the proxy that the environment names for this address, if any.
    """
    proxy = find_proxy(address)
    host, port, headers = proxy or (address.host, address.port, {})
    if address.scheme == "http":
        connection = http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        return connection, f"{address.origin}{path}" if proxy else path, headers
    context = ssl.create_default_context()
    if find_spec("certifi") is not None:  # some Pythons do not know the system's certificate authorities
        context.load_verify_locations(import_module("certifi").where())
    tls_connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=context)
    if proxy:
        tls_connection.set_tunnel(address.host, address.port, headers)
    return tls_connection, path, {}  # the proxy gets its headers with the tunnel


def find_proxy(address: ServerAddress) -> tuple[str, int, dict[str, str]] | None:
    """Return host, port and headers of the proxy that the environment names for this address. Raises RemoteError."""
    if address.is_loopback:
        return None
    from urllib.request import getproxies, proxy_bypass

    text = getproxies().get(address.scheme)
    if not text or proxy_bypass(address.host):
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme != "http" or not parts.hostname or port == -1:
        raise RemoteError(f"the proxy for {address.scheme} is not supported: it must have the form http://host:port")
    headers = {}
    if parts.username is not None:
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(credentials.encode()).decode()}"
    return parts.hostname, port or 80, headers


def describe_failure(error: Exception, address: ServerAddress, *, is_connected: bool) -> str:
    """Return why a request failed, in one sentence with a remedy."""
    if isinstance(error, RemoteError):
        return str(error)
    origin = address.origin
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "SSL_CERT_FILE can name a file of trusted authorities"
        return f"the certificate of {origin} is not trusted: {error.verify_message}; {remedy}"
    if isinstance(error, ssl.SSLError):
        return f"{origin} does not speak TLS ({safe_repr(error.reason)}): is it an http:// address?"
    if not is_connected:
        if isinstance(error, socket.gaierror):
            return f"unknown host {address.host!r}: {error.strerror}"
        if isinstance(error, TimeoutError):
            return f"{origin} did not answer within {CONNECT_SECONDS:.0f} seconds: is the address right?"
        if isinstance(error, ConnectionRefusedError):
            return f"{origin} refuses connections: is the server running?"
        return f"{origin} is unreachable: {safe_repr(getattr(error, 'strerror', None) or str(error), 120)}"
    if isinstance(error, TimeoutError):
        return f"{origin} sent nothing for {READ_SECONDS:.0f} seconds: the request was cancelled"
    if isinstance(error, http.client.RemoteDisconnected):
        remedy = ": is it an https:// address?" if address.scheme == "http" else ""
        return f"{origin} closed the connection without an answer{remedy}"
    if isinstance(error, http.client.IncompleteRead | OSError):
        return f"{origin} closed the connection before its answer was complete"
    return f"{origin} does not speak HTTP ({type(error).__name__}): is it an https:// address, or not a web server?"
