"""One HTTP request and its answer, carried by a thread: who waits for it stays free to stop it."""

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
from sporelm.cli.remote.address import Address
from sporelm.errors import RemoteError, shown

CONNECT_SECONDS = 10.0
PAUSE_SECONDS = 600.0  # between two pieces of an answer
LOOK_SECONDS = 0.1  # between two looks at whether the user wants to stop
AT_ONCE = 64 << 10  # bytes
MOST_WAITING = 64  # pieces that were read and not taken
# SO_LINGER on, no seconds: what is not read any more is refused at once. A server that is blocked in writing may learn
# of a polite end a minute later only.
AT_AN_END = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


class Head(NamedTuple):
    """What an answer begins with."""

    status: int
    headers: Mapping[str, str]  # by their names in small letters


class Exchange:
    """Yields the head, then the body in pieces. `close` ends it at any time, which the server notices at once.

    `is_whole` is for who has all that counts: what the server still writes is then no reason to break with it.
    """

    def __init__(self, address: Address, path: str, headers: Mapping[str, str], body: bytes | None = None) -> None:
        """A POST of `body`, or a GET where there is none."""
        self.address, self.path, self.body = address, path, body
        self.headers = {"User-Agent": f"sporelm/{__version__}", "Connection": "close", **headers}
        self.socket: socket.socket | None = None
        self.is_whole = False
        self._parts: queue.Queue[Head | bytes | Exception | None] = queue.Queue(MOST_WAITING)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="request", daemon=True)

    def parts(self) -> Generator[Head | bytes | None, None, None]:
        """The head, then bytes; None after each moment in which nothing came. Raises RemoteError."""
        self._thread.start()
        try:
            while True:
                try:
                    part = self._parts.get(timeout=LOOK_SECONDS)
                except queue.Empty:
                    yield None
                    continue
                if part is None:
                    return
                if isinstance(part, Exception):
                    raise RemoteError(reason_of(part, self.address, connected=self.socket is not None)) from part
                yield part
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection. A name that is still being looked up is left to the thread, which ends after it."""
        self._closed.set()
        if self.socket is not None:
            with contextlib.suppress(OSError):
                if not self.is_whole:
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_AN_END)
                self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
        if self._thread.ident is not None:
            self._thread.join(1)

    def _carry(self) -> None:
        """Ask, and pass on what comes. Runs in the thread."""
        try:
            connection, target, more = connection_to(self.address, self.path)
            with contextlib.closing(connection):
                connection.connect()
                self.socket = connection.sock
                self.socket.settimeout(PAUSE_SECONDS)
                if self._closed.is_set():
                    return
                connection.request("GET" if self.body is None else "POST", target, self.body, self.headers | more)
                with connection.getresponse() as response:
                    told = {name.lower(): value for name, value in response.getheaders()}
                    self._pass(Head(response.status, told))
                    while not self._closed.is_set() and (data := response.read1(AT_ONCE)):
                        self._pass(data)
                    if response.length:  # less came than was promised; http.client takes that for the end
                        raise http.client.IncompleteRead(b"", response.length)
            self._pass(None)
        except Exception as error:
            self._pass(error)

    def _pass(self, part: Head | bytes | Exception | None) -> None:
        """Put a part where it is taken from; wait while too many lie there, unless nobody takes them any more."""
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                return self._parts.put(part, timeout=LOOK_SECONDS)


def connection_to(address: Address, path: str) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """A connection that is not open yet, through the proxy of the environment if it names one; what is asked of it, and
    the headers that the proxy wants. Raises RemoteError."""
    proxy = proxy_of(address)
    host, port, headers = proxy or (address.host, address.port, {})
    if address.scheme == "http":
        plain = http.client.HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        return plain, f"{address.origin}{path}" if proxy else path, headers
    context = ssl.create_default_context()
    if find_spec("certifi") is not None:  # some Pythons know no authorities of the system
        context.load_verify_locations(import_module("certifi").where())
    secure = http.client.HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=context)
    if proxy:
        secure.set_tunnel(address.host, address.port, headers)
    return secure, path, {}  # the proxy has had its own


def proxy_of(address: Address) -> tuple[str, int, dict[str, str]] | None:
    """Host, port and headers of the proxy that the environment names for this address. Raises RemoteError."""
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
        raise RemoteError(f"the proxy for {address.scheme} cannot be used: it must be as in http://host:port")
    headers = {}
    if parts.username is not None:
        told = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(told.encode()).decode()}"
    return parts.hostname, port or 80, headers


def reason_of(error: Exception, address: Address, *, connected: bool) -> str:
    """Why a request failed, in one sentence with a remedy; `connected`: whether there was a connection."""
    if isinstance(error, RemoteError):
        return str(error)
    where = address.origin
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "SSL_CERT_FILE can name a file of authorities to be trusted"
        return f"the certificate of {where} is not to be trusted: {error.verify_message}; {remedy}"
    if isinstance(error, ssl.SSLError):
        return f"{where} does not speak TLS as it should ({shown(error.reason)}): is it an http:// address?"
    if not connected:
        if isinstance(error, socket.gaierror):
            return f"there is no host {address.host!r}: {error.strerror}"
        if isinstance(error, TimeoutError):
            return f"{where} did not answer within {CONNECT_SECONDS:.0f} seconds: is the address right?"
        if isinstance(error, ConnectionRefusedError):
            return f"{where} takes no connection: is the server running?"
        return f"{where} cannot be reached: {shown(getattr(error, 'strerror', None) or str(error), 120)}"
    if isinstance(error, TimeoutError):
        return f"{where} sent nothing for {PAUSE_SECONDS:.0f} seconds: the answer was given up"
    if isinstance(error, http.client.RemoteDisconnected):
        remedy = ": is it an https:// address?" if address.scheme == "http" else ""
        return f"{where} closed the connection without an answer{remedy}"
    if isinstance(error, http.client.IncompleteRead | OSError):
        return f"{where} closed the connection before its answer was whole"
    return f"{where} does not answer in HTTP ({type(error).__name__}): is it an https:// address, or another server's?"
