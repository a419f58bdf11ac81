"""Pictures are fetched from named hosts at public addresses, within limits of size and time."""

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from image_files import valid_files
from sporelm.errors import RequestError
from sporelm.vision.image_fetching import ImageFetcher, is_public_address, resolve_host

PICTURE = valid_files()["PNG"]


class Handler(BaseHTTPRequestHandler):
    """Answers by path; keeps what was asked."""

    protocol_version = "HTTP/1.1"
    server: "PictureServer"

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        name = self.path.split("?")[0].strip("/")
        if name == "loop":
            self._reply(302, b"", Location="/loop")
        elif name.startswith("to="):
            self._reply(302, b"", Location=name.removeprefix("to=").replace("|", "/"))
        elif name == "chunked":
            self._start(200, {"Transfer-Encoding": "chunked"})
            for piece in (PICTURE[:100], PICTURE[100:], b""):
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        elif name == "endless":
            self._start(200, {"Connection": "close"})
            with_pieces = b"x" * 1000
            while not self.server.closing.is_set():
                self.wfile.write(with_pieces)
        elif name in ("drip", "drip-unknown"):
            self._start(200, {"Content-Length": "1000"} if name == "drip" else {"Connection": "close"})
            while not self.server.closing.wait(0.05):
                self.wfile.write(b"x")
        elif name == "drip-headers":
            while not self.server.closing.wait(0.05):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif name == "short":
            self._start(200, {"Content-Length": "5000", "Connection": "close"})
            self.wfile.write(b"x" * 100)
            self.close_connection = True
        elif name == "gzip":
            self._reply(200, b"xx", **{"Content-Encoding": "gzip"})
        elif name == "garbage":
            self.wfile.write(b"\0\1\2 nothing\r\n\r\n")
            self.close_connection = True
        elif name == "missing":
            self._reply(404, b"no")
        else:
            self._reply(200, PICTURE, **{"Content-Type": "text/html"})

    def _start(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _reply(self, status: int, body: bytes, **headers: str) -> None:
        self._start(status, {"Content-Length": str(len(body)), **headers})
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class PictureServer(ThreadingHTTPServer):
    """A server of pictures on the loopback address."""

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.closing = threading.Event()
        self.port = self.server_address[1]
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    def handle_error(self, *_: Any) -> None:
        """Connections that the client aborts are expected."""


def running(server: PictureServer) -> Iterator[PictureServer]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def server() -> Iterator[PictureServer]:
    yield from running(PictureServer())


def loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def make_fetcher(server: PictureServer, *hosts: str, **options: Any) -> ImageFetcher:
    """Return a fetcher that may fetch from the server as `pictures.test`."""
    settings: dict[str, Any] = {"resolve": loopback, "is_allowed": lambda _: True, "max_seconds": 10.0, **options}
    return ImageFetcher([f"pictures.test:{server.port}", *hosts], **settings)


def refusal(fetcher: ImageFetcher, url: str) -> str:
    with pytest.raises(RequestError) as caught:
        fetcher.fetch(url)
    message = str(caught.value)
    assert message.startswith("image: ")
    assert "\n" not in message
    return message


def test_a_picture_is_fetched_whatever_its_type(server: PictureServer) -> None:
    base = f"http://pictures.test:{server.port}"
    fetcher = make_fetcher(server)
    assert fetcher.fetch(f"{base}/a.png?size=1&x=%20#part") == PICTURE
    ((path, headers),) = server.requests
    assert path == "/a.png?size=1&x=%20"
    assert headers["Host"] == f"pictures.test:{server.port}"
    assert headers["Accept-Encoding"] == "identity"
    assert not {"Authorization", "Cookie", "Referer"} & set(headers)
    assert fetcher.fetch(f"{base}/chunked") == PICTURE
    assert fetcher.fetch(f"HTTP://Pictures.TEST.:{server.port}") == PICTURE


def test_the_name_is_resolved_once_and_the_address_is_pinned(server: PictureServer) -> None:
    asked: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    fetcher = make_fetcher(server, resolve=resolve, is_allowed=lambda address: address == "127.0.0.1")
    assert fetcher.fetch(f"http://pictures.test:{server.port}/a") == PICTURE
    assert asked == [("pictures.test", server.port)]
    assert "not public" in refusal(fetcher, f"http://pictures.test:{server.port}/a")


def test_one_private_address_among_several_refuses_the_host(server: PictureServer) -> None:
    fetcher = ImageFetcher(["pictures.test"], resolve=lambda *_: ["93.184.216.34", "10.0.0.1"])
    assert "pictures.test has an address that is not public" in refusal(fetcher, "http://pictures.test/a")
    assert server.requests == []


def test_loopback_is_refused_by_the_default_policy(server: PictureServer) -> None:
    for host in ("127.0.0.1", "localhost", "[::1]"):
        fetcher = ImageFetcher([f"{host}:{server.port}"])
        message = refusal(fetcher, f"http://{host}:{server.port}/a")
        assert "not public" in message or "cannot resolve" in message
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "http://other.test/a",
        "http://pictures.test.evil.test/a",
        "http://evil.test/pictures.test",
        "http://pictures.test:81/a",
        "https://pictures.test:80/a",
        "http://sub.pictures.test/a",
        "http://127.0.0.1/a",
        "http://2130706433/a",
        "http:///a",
        "http:pictures.test/a",
    ],
)
def test_hosts_and_ports_that_were_not_named_are_refused(url: str) -> None:
    fetcher = ImageFetcher(["pictures.test", "with-port.test:8080"], resolve=loopback)
    message = refusal(fetcher, url)
    assert "are not fetched" in message
    assert "allowed pictures.test, with-port.test:8080" in message
    assert "--allow-image-host NAME" in message


def test_a_name_with_a_port_allows_that_port_alone(server: PictureServer) -> None:
    fetcher = make_fetcher(server)
    for url in ("http://pictures.test/a", "https://pictures.test/a", f"http://pictures.test:{server.port + 1}/a"):
        assert "are not fetched" in refusal(fetcher, url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:secret@pictures.test/a", "a user name or password"),
        ("http://user@pictures.test/a", "a user name or password"),
        ("http://pictures.test\\@evil.test/a", "must be percent-encoded"),
        ("http://pictures.test/a b", "must be percent-encoded"),
        ("http://pictures.test/a\r\nX: y", "must be percent-encoded"),
        ("http://pictures.test/\u00e9", "must be percent-encoded"),
        ("http://pictures.test:99999/a", "malformed"),
        ("http://pictures.test:x/a", "malformed"),
        ("http://[::1/a", "malformed"),
        ("file:///etc/passwd", "the scheme 'file'"),
        ("ftp://pictures.test/a", "the scheme 'ftp'"),
        ("data:image/png;base64,AAAA", "the scheme 'data'"),
        ("//pictures.test/a", "the scheme ''"),
    ],
)
def test_other_addresses_are_refused(url: str, message: str) -> None:
    assert message in refusal(ImageFetcher(["pictures.test"], resolve=loopback), url)


@pytest.mark.parametrize(
    "entry", ["", "http://a.test", "a.test/path", "user@a.test", "*.a.test", "a.test:x", "a b", ":1"]
)
def test_entries_that_are_not_hosts_are_refused(entry: str) -> None:
    with pytest.raises(RequestError, match=r"allowed image host: not a host .*allowed NAME or NAME:PORT"):
        ImageFetcher([entry])


def test_redirects_are_checked_each_time(server: PictureServer) -> None:
    base = f"http://pictures.test:{server.port}"
    fetcher = make_fetcher(server)
    assert fetcher.fetch(f"{base}/to=|b.png") == PICTURE
    assert fetcher.fetch(f"{base}/to=http:||pictures.test:{server.port}|b.png") == PICTURE
    paths = ["/to=|b.png", "/b.png", f"/to=http:||pictures.test:{server.port}|b.png", "/b.png"]
    assert [path for path, _ in server.requests] == paths
    assert "other.test" in refusal(fetcher, f"{base}/to=http:||other.test|b")
    assert "are not fetched" in refusal(fetcher, f"{base}/to=http:||127.0.0.1:{server.port}|b")
    assert "the scheme 'file'" in refusal(fetcher, f"{base}/to=file:|||etc|passwd")
    server.requests.clear()
    assert "too many redirects (allowed 3)" in refusal(fetcher, f"{base}/loop")
    assert len(server.requests) == 4


def test_a_redirect_to_a_private_address_is_refused(server: PictureServer) -> None:
    def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "pictures.test" else ["10.0.0.1"]

    fetcher = make_fetcher(server, "inner.test", resolve=resolve, is_allowed=lambda address: address != "10.0.0.1")
    message = refusal(fetcher, f"http://pictures.test:{server.port}/to=http:||inner.test|")
    assert "inner.test has an address that is not public" in message


def test_sizes_are_limited(server: PictureServer) -> None:
    base = f"http://pictures.test:{server.port}"
    fetcher = make_fetcher(server, max_bytes=len(PICTURE) - 1)
    assert f"too large (got {len(PICTURE)} bytes; allowed {len(PICTURE) - 1})" in refusal(fetcher, f"{base}/a")
    for name in ("chunked", "endless"):
        assert "too large (got more than" in refusal(fetcher, f"{base}/{name}")
    assert make_fetcher(server, max_bytes=len(PICTURE)).fetch(f"{base}/a") == PICTURE


def test_the_size_of_all_pictures_together_is_limited(server: PictureServer) -> None:
    base = f"http://pictures.test:{server.port}"
    fetcher = make_fetcher(server, max_total_bytes=2 * len(PICTURE) + 150)
    assert fetcher.fetch(f"{base}/a") == fetcher.fetch(f"{base}/b") == PICTURE
    total, allowed = 3 * len(PICTURE), 2 * len(PICTURE) + 150
    message = f"too large together (got {total} bytes; allowed {allowed})"
    assert message in refusal(fetcher, f"{base}/c")  # by its announced length: nothing was read
    assert message in refusal(fetcher, f"{base}/c")
    assert "too large together" in refusal(fetcher, f"{base}/endless")
    assert "too large together" in refusal(fetcher, f"{base}/chunked")


@pytest.mark.parametrize("name", ["drip", "drip-unknown", "drip-headers"])
def test_time_is_limited_in_all(server: PictureServer, name: str) -> None:
    fetcher = make_fetcher(server, max_seconds=0.4)
    began = time.monotonic()
    message = refusal(fetcher, f"http://pictures.test:{server.port}/{name}")
    assert "fetching it from pictures.test takes too long (allowed 0.4 s)" in message
    assert time.monotonic() - began < 5


def test_a_slow_resolver_and_a_silent_server_are_given_up() -> None:
    began = time.monotonic()
    waiting = threading.Event()
    slow = ImageFetcher(["a.test"], max_seconds=0.2, resolve=lambda *_: [str(waiting.wait(20))])
    assert "takes too long" in refusal(slow, "http://a.test/")
    waiting.set()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for scheme in ("http", "https"):
            fetcher = ImageFetcher([f"a.test:{port}"], max_seconds=0.2, resolve=loopback, is_allowed=lambda _: True)
            message = refusal(fetcher, f"{scheme}://a.test:{port}/")
            assert "takes too long" in message
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "got HTTP status 404"),
        ("short", "closed the connection before the end"),
        ("gzip", "compressed body"),
        ("garbage", "cannot fetch it from pictures.test"),
    ],
)
def test_failures_of_the_server_are_named(server: PictureServer, name: str, message: str) -> None:
    assert message in refusal(make_fetcher(server), f"http://pictures.test:{server.port}/{name}")


def test_an_unreachable_server_and_an_unknown_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fetcher = ImageFetcher([f"a.test:{port}"], resolve=loopback, is_allowed=lambda _: True)
    assert "cannot fetch it from a.test" in refusal(fetcher, f"http://a.test:{port}/")

    def fail(host: str, port: int) -> list[str]:
        raise socket.gaierror("unknown name")

    assert "cannot resolve the host a.test: unknown name" in refusal(
        ImageFetcher(["a.test"], resolve=fail), "http://a.test/"
    )


def test_another_address_of_a_host_is_tried(server: PictureServer) -> None:
    addresses = ["127.0.0.254" if socket.has_dualstack_ipv6() else "127.0.0.1", "127.0.0.1"]
    fetcher = make_fetcher(server, resolve=lambda *_: addresses)
    assert fetcher.fetch(f"http://pictures.test:{server.port}/a") == PICTURE


def test_the_systems_resolver_gives_addresses() -> None:
    assert resolve_host("127.0.0.1", 80) == ["127.0.0.1"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not installed")
def test_certificates_are_checked_against_the_name(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "a.pem"), str(tmp_path / "a.key")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=pictures.test -addext subjectAltName=DNS:pictures.test"
    command = ["openssl", *words.split(), "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.sni_callback = lambda _, name, __: names.append(name)  # type: ignore[assignment]
    trusting = ssl.create_default_context(cafile=certificate)
    for server in running(PictureServer(context)):
        fetcher = make_fetcher(server, f"other.test:{server.port}", tls=trusting)
        assert fetcher.fetch(f"https://pictures.test:{server.port}/a") == PICTURE
        assert names == ["pictures.test"]
        assert server.requests[0][1]["Host"] == f"pictures.test:{server.port}"
        message = refusal(fetcher, f"https://other.test:{server.port}/a")
        assert "certificate" in message.lower()
        distrusting = make_fetcher(server)
        assert "certificate" in refusal(distrusting, f"https://pictures.test:{server.port}/a").lower()
        path = f"to=http:||pictures.test:{server.port}|a"
        assert "from https to http" in refusal(fetcher, f"https://pictures.test:{server.port}/{path}")


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_public_addresses(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.1.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
        "host.test",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public_address(address)
