"""Fetches pictures from allowed web servers, and never from this machine or its network.

This prevents server-side request forgery (SSRF): a server that fetches URLs of its users can be made to send requests
into its own network. So the operator must allow a host, its name is resolved once, all its addresses must be public,
and the connection goes to the address that was checked, since a second resolution could differ (DNS rebinding).
"""

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock, Thread, Timer
from urllib.parse import SplitResult, urljoin, urlsplit

from sporelm.errors import RequestError, safe_repr

MAX_REDIRECTS = 3
DEFAULT_PORTS = {"http": 80, "https": 443}
_PIECE_BYTES = 64 << 10
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "sporelm"}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")  # RFC 8215
_COMPATIBLE = ipaddress.IPv6Network("::/96")  # RFC 4291, section 2.5.5.1

Resolver = Callable[[str, int], list[str]]


def resolve_host(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host, in the system's order. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def is_public_address(address: str) -> bool:
    """Whether an IP address is one of the public internet, as are all IPv4 addresses that an IPv6 address contains."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if not ip.is_global or ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback or ip.is_link_local:
        return isinstance(ip, ipaddress.IPv6Address) and ip in _NAT64 and _is_public_embedded(ip)
    return isinstance(ip, ipaddress.IPv4Address) or _is_public_embedded(ip)


def _is_public_embedded(ip: ipaddress.IPv6Address) -> bool:
    if ip in _LOCAL_NAT64 or ip in _COMPATIBLE or ip.is_site_local or ip.scope_id is not None:
        return False
    embedded = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        embedded.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    return all(is_public_address(str(each)) for each in embedded if each is not None)


class ImageFetcher:
    """Fetches pictures over HTTP and HTTPS from allowed hosts. Any thread may use it.

    allowed_hosts    hosts as in `--allow-image-host`: NAME for ports 80 and 443, or NAME:PORT for that port alone
    max_bytes        of a picture
    max_seconds      from the resolution of the name to the last byte, with redirects
    max_total_bytes  of all pictures together, failed ones included; None: no limit
    resolve          returns the addresses of a host
    is_allowed       whether an address may be connected to
    tls              context for certificate verification; None: the system's default

    The environment's proxies are not used: a proxy would resolve the name again.
    """

    def __init__(
        self,
        allowed_hosts: Iterable[str],
        max_bytes: int = 20 << 20,
        max_seconds: float = 10.0,
        max_total_bytes: int | None = None,
        *,
        resolve: Resolver = resolve_host,
        is_allowed: Callable[[str], bool] = is_public_address,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Raises RequestError for a host that is neither NAME nor NAME:PORT."""
        self._allowed = {_parse_allowed(each) for each in allowed_hosts}
        self.max_bytes = max_bytes
        self.max_seconds = max_seconds
        self.max_total_bytes = max_total_bytes
        self._total_bytes = 0
        self._lock = Lock()
        self._resolve = resolve
        self._is_allowed = is_allowed
        self._tls = tls

    def fetch(self, url: str) -> bytes:
        """Return the bytes at an address, whatever their type: the decoder recognizes it.

        Raises RequestError for an address that is not allowed, a failure of the server, and exceeded limits.
        """
        end = time.monotonic() + self.max_seconds
        for _ in range(MAX_REDIRECTS + 1):
            result = self._get(self._check(url), end)
            if isinstance(result, bytes):
                return result
            target = urljoin(url, result)
            if url.lower().startswith("https:") and target.lower().startswith("http:"):
                raise _refuse(target, "a redirect from https to http")
            url = target
        raise RequestError(
            f"image: too many redirects (allowed {MAX_REDIRECTS}) before {_show(url)}. Use the address of the picture."
        )

    def _check(self, url: str) -> SplitResult:
        """Return the parts of an allowed address. Raises RequestError."""
        if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
            raise _refuse(url, "characters that must be percent-encoded")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _refuse(url, "a malformed address") from None
        if parts.scheme not in DEFAULT_PORTS:
            raise _refuse(url, f"the scheme {safe_repr(parts.scheme)}")
        if parts.username is not None or parts.password is not None:
            raise _refuse(url, "a user name or password in it")
        host = _normalize(parts.hostname or "")
        is_default = port is None or port == DEFAULT_PORTS[parts.scheme]
        names = {(host, self._port(parts)), (host, None if is_default else port)}
        if not names & self._allowed:
            shown = host if is_default else f"{host}:{port}"
            raise RequestError(
                f"image: pictures of {safe_repr(shown, 100)} are not fetched (got {_show(url)}; allowed "
                f"{self._list_allowed()}). Send the picture as data:image/png;base64,..., or start the server with "
                "--allow-image-host NAME."
            )
        return parts

    def _port(self, parts: SplitResult) -> int:
        return parts.port if parts.port is not None else DEFAULT_PORTS[parts.scheme]

    def _list_allowed(self) -> str:
        return ", ".join(sorted(host if port is None else f"{host}:{port}" for host, port in self._allowed)) or "none"

    def _get(self, parts: SplitResult, end: float) -> bytes | str:
        """Return the body of a response, or the target of a redirect. Raises RequestError."""
        host = _normalize(parts.hostname or "")
        port = self._port(parts)
        addresses = self._find_addresses(host, port, end)
        tls = None
        if parts.scheme == "https":
            tls = self._tls or ssl.create_default_context()
        connection = _PinnedConnection(host, port, addresses, tls, end)
        watchdog = Timer(max(end - time.monotonic(), 0.0), connection.abort)
        watchdog.daemon = True
        watchdog.start()
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("GET", target, headers=_HEADERS)
            with connection.getresponse() as response:
                result = self._read(response, host)
            if connection.is_aborted:  # looks like the normal end of a body without a length
                raise self._make_time_error(host)
            return result
        except (OSError, http.client.HTTPException, ValueError) as error:
            if connection.is_aborted or isinstance(error, TimeoutError):
                raise self._make_time_error(host) from None
            if isinstance(error, http.client.IncompleteRead):
                raise RequestError(f"image: {host} closed the connection before the end. Try again.") from None
            reason = " ".join(str(error).split())[:100] or type(error).__name__
            raise RequestError(
                f"image: cannot fetch it from {host}: {reason}. Check the address, or send the picture as a data URI."
            ) from None
        finally:
            watchdog.cancel()
            connection.close()

    def _read(self, response: http.client.HTTPResponse, host: str) -> bytes | str:
        if response.status in _REDIRECTS and (location := response.getheader("Location")):
            return location.strip()
        if response.status != 200:
            raise RequestError(
                f"image: {host} has no picture at this address (got HTTP status {response.status}; allowed 200). Check "
                "the address."
            )
        if response.getheader("Content-Encoding", "identity").strip().lower() != "identity":
            raise RequestError(f"image: {host} sends a compressed body that was not requested. Use another server.")
        length = response.length
        if length is not None and length > self.max_bytes:
            raise self._make_size_error(host, str(length))
        self._count_bytes(0, length or 0)
        data = bytearray()
        while piece := response.read(_PIECE_BYTES):
            self._count_bytes(len(piece))
            data += piece
            if len(data) > self.max_bytes:
                raise self._make_size_error(host, f"more than {self.max_bytes}")
        if length is not None and len(data) < length:
            raise http.client.IncompleteRead(b"", length - len(data))
        return bytes(data)

    def _count_bytes(self, nbytes: int, announced: int = 0) -> None:
        """Count bytes that were read. Raises RequestError if they, or the `announced` ones, are too many in all."""
        with self._lock:
            self._total_bytes += nbytes
            total = self._total_bytes + announced
        if self.max_total_bytes is not None and total > self.max_total_bytes:
            raise RequestError(
                f"image: the fetched pictures are too large together (got {total} bytes; allowed "
                f"{self.max_total_bytes}). Use fewer or smaller pictures."
            )

    def _find_addresses(self, host: str, port: int, end: float) -> list[str]:
        """Return the addresses of a host. Raises RequestError if one is not public, or the resolver is slow."""
        found: list[str] = []
        errors: list[Exception] = []

        def resolve() -> None:
            try:
                found.extend(self._resolve(host, port))
            except (OSError, UnicodeError) as error:
                errors.append(error)

        thread = Thread(target=resolve, name="resolve", daemon=True)  # a resolution cannot be interrupted
        thread.start()
        thread.join(max(end - time.monotonic(), 0.0))
        if thread.is_alive():
            raise self._make_time_error(host)
        addresses = list(found)
        if not addresses:
            reason = f": {errors[0]}" if errors else ""
            raise RequestError(f"image: cannot resolve the host {host}{reason}. Check the address.")
        if not all(map(self._is_allowed, addresses)):
            raise RequestError(
                f"image: {host} has an address that is not public. Pictures are fetched from the public internet only; "
                "send this one as a data URI."
            )
        return addresses

    def _make_time_error(self, host: str) -> RequestError:
        return RequestError(
            f"image: fetching it from {host} takes too long (allowed {self.max_seconds:g} s). Send the picture as a "
            "data URI."
        )

    def _make_size_error(self, host: str, nbytes: str) -> RequestError:
        return RequestError(
            f"image: the file at {host} is too large (got {nbytes} bytes; allowed {self.max_bytes}). Use a smaller "
            "picture."
        )


class _PinnedConnection(http.client.HTTPConnection):
    """An HTTP(S) connection to one of several checked addresses of a host, which can be aborted by another thread."""

    def __init__(self, host: str, port: int, addresses: list[str], tls: ssl.SSLContext | None, end: float) -> None:
        super().__init__(f"[{host}]" if ":" in host else host, port)
        if tls is not None:
            self.default_port = DEFAULT_PORTS["https"]  # left out of the Host header
        self._addresses = addresses
        self._host_name = host
        self._tls = tls
        self._end = end
        self._raw: socket.socket | None = None
        self.is_aborted = False

    def connect(self) -> None:
        """Connect to the first address that answers. Raises OSError."""
        error: OSError = TimeoutError()
        for address in self._addresses:
            remaining = self._end - time.monotonic()
            if self.is_aborted or remaining <= 0:
                raise TimeoutError
            try:
                self._raw = socket.create_connection((address, self.port), remaining)
            except OSError as reason:
                error = reason
                continue
            self.sock = self._raw
            if self.is_aborted:  # before there was a socket to shut down
                raise TimeoutError
            if self._tls is not None:
                # The wrapped socket takes over the descriptor, so the watchdog must know it before the handshake.
                wrapped = self._tls.wrap_socket(
                    self._raw, server_hostname=self._host_name, do_handshake_on_connect=False
                )
                self.sock = self._raw = wrapped
                wrapped.do_handshake()
            return
        raise error

    def abort(self) -> None:
        """Make pending operations of other threads on this connection fail."""
        self.is_aborted = True
        raw = self._raw
        if raw is not None:
            with suppress(OSError):
                # Not SSLSocket.shutdown, which takes the TLS state from under the other thread.
                socket.socket.shutdown(raw, socket.SHUT_RDWR)


def _parse_allowed(entry: str) -> tuple[str, int | None]:
    """Return name and port of an allowed host; no port for the default ones. Raises RequestError."""
    try:
        parts = urlsplit(f"//{entry.strip()}")
        port = parts.port
        host = _normalize(parts.hostname or "")
    except ValueError:
        host, port, parts = "", None, SplitResult("", "", "", "", "")
    if not host or parts.netloc != entry.strip() or "@" in entry or "*" in entry or any(map(str.isspace, entry)):
        raise RequestError(
            f"allowed image host: not a host (got {safe_repr(entry)}; allowed NAME or NAME:PORT). Name a host such as "
            "images.example.com."
        )
    return host, port


def _normalize(host: str) -> str:
    """Return a host name in lower-case ASCII, without the dot of the root. Raises ValueError."""
    host = host.lower().removesuffix(".")
    return host if host.isascii() else host.encode("idna").decode("ascii")


def _refuse(url: str, problem: str) -> RequestError:
    return RequestError(
        f"image: the address has {problem} (got {_show(url)}; allowed http and https addresses of allowed hosts). Send "
        "the picture as a data URI."
    )


def _show(url: str) -> str:
    return safe_repr(url, 100)
