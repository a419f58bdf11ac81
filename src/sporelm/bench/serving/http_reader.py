"""Reads HTTP/1.1 answers: by httptools, which is compiled, or by h11, which comes with uvicorn and runs everywhere."""

from contextlib import suppress
from typing import Protocol

MAX_HEAD_BYTES = 1 << 16  # bytes of an answer's head


class InvalidHttp(Exception):
    """The received bytes are not an HTTP/1.1 answer."""


class ResponseSink(Protocol):
    """Takes what is read."""

    def head(self, status: int, headers: dict[bytes, bytes], *, stays: bool) -> None:
        """Status and headers (names in lower case); `stays`: the connection can be used again."""

    def body(self, data: bytes) -> None:
        """The next part of the body."""

    def end(self) -> None:
        """The answer is whole."""


class ResponseReader(Protocol):
    """Reads one answer after the other."""

    def begin(self) -> None:
        """A request was sent: an answer is to come."""

    def feed(self, data: bytes) -> None:
        """Bytes that arrived. Raises NoHttp."""

    def closed(self) -> None:
        """No more bytes will come, which ends an answer that does not say how long it is; others are cut short."""


def make_reader(sink: ResponseSink) -> ResponseReader:
    """Return the faster of the installed readers."""
    try:
        import httptools  # noqa: F401
    except ImportError:
        return H11Reader(sink)
    return HttpToolsReader(sink)


class HttpToolsReader:
    """By httptools. It calls back for each part: the names of those methods are its own."""

    def __init__(self, sink: ResponseSink) -> None:
        from httptools import HttpParserError, HttpResponseParser

        self.sink = sink
        self._make = HttpResponseParser
        self._error = HttpParserError
        self.on_body = sink.body  # called for each piece, so without a call in between

    def begin(self) -> None:
        self._parser = self._make(self)
        self._headers: dict[bytes, bytes] = {}
        self._sized = False
        self._whole = False
        self._bytes = 0

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except self._error as reason:
            cause = reason.__context__
            if cause is not None and not isinstance(cause, self._error):  # a fault of ours, in what was called back
                raise cause from None
            raise InvalidHttp(str(reason)) from None

    def on_header(self, name: bytes, value: bytes) -> None:
        self._bytes += len(name) + len(value)
        if self._bytes > MAX_HEAD_BYTES:
            raise InvalidHttp(f"the head of an answer is longer than {MAX_HEAD_BYTES} bytes")
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            return
        headers = self._headers
        self._sized = b"content-length" in headers or b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        stays = self._sized and self._parser.should_keep_alive()
        self.sink.head(status, headers, stays=stays)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._whole = True
            self.sink.end()

    def closed(self) -> None:
        if self._headers and not self._sized and not self._whole:
            self._whole = True
            self.sink.end()


class H11Reader:
    """By h11."""

    def __init__(self, sink: ResponseSink) -> None:
        import h11

        self.sink = sink
        self._h11 = h11

    def begin(self) -> None:
        h11 = self._h11
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        # It reads no answer unless a request went before; that it was ours makes no difference.
        self._connection.send(h11.Request(method="GET", target="/", headers=[("host", "-")]))
        self._connection.send(h11.EndOfMessage())

    def feed(self, data: bytes) -> None:
        h11 = self._h11
        try:
            self._connection.receive_data(data)
            while True:
                event = self._connection.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                if isinstance(event, h11.Response):
                    headers = dict(event.headers)
                    sized = b"content-length" in headers or b"transfer-encoding" in headers
                    stays = sized and self._connection.their_state is not h11.MUST_CLOSE
                    stays = stays and b"close" not in headers.get(b"connection", b"").lower()
                    self.sink.head(event.status_code, headers, stays=stays and event.http_version == b"1.1")
                elif isinstance(event, h11.Data):
                    self.sink.body(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self.sink.end()
                elif isinstance(event, h11.ConnectionClosed):
                    return
        except h11.RemoteProtocolError as reason:
            raise InvalidHttp(str(reason)) from None

    def closed(self) -> None:
        if self._connection.their_state is self._h11.SEND_BODY:
            with suppress(InvalidHttp):
                self.feed(b"")
