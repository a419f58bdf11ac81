"""HTTP/1.1 answers read by either library: lengths, chunks, ends, and invalid answers."""

import pytest

from sporelm.bench.serving.http_reader import (
    MAX_HEAD_BYTES,
    H11Reader,
    HttpToolsReader,
    InvalidHttp,
    ResponseReader,
    ResponseSink,
    make_reader,
)


class Noted:
    """Notes what is read."""

    def __init__(self) -> None:
        self.status, self.data, self.ends = 0, b"", 0
        self.headers: dict[bytes, bytes] = {}
        self.stays: bool | None = None

    def head(self, status: int, headers: dict[bytes, bytes], *, stays: bool) -> None:
        self.status, self.headers, self.stays = status, headers, stays

    def body(self, data: bytes) -> None:
        self.data += data

    def end(self) -> None:
        self.ends += 1


KINDS: dict[str, type[HttpToolsReader] | type[H11Reader]] = {"httptools": HttpToolsReader, "h11": H11Reader}


@pytest.fixture(params=list(KINDS))
def read(request: pytest.FixtureRequest) -> tuple[ResponseReader, Noted]:
    pytest.importorskip(request.param)
    noted = Noted()
    made = KINDS[request.param](noted)
    made.begin()
    return made, noted


ANSWERS = {
    "sized": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-a: b\r\n\r\nhello",
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_answers_in_pieces(read: tuple[ResponseReader, Noted], name: str, size: int) -> None:
    made, noted = read
    data = ANSWERS[name]
    for at in range(0, len(data), size):
        assert noted.ends == 0
        made.feed(data[at : at + size])
    assert (noted.status, noted.data, noted.ends, noted.stays) == (200, b"hello", 1, True)
    assert noted.headers[b"x-a"] == b"b"
    made.begin()
    made.feed(b"HTTP/1.1 429 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    assert (noted.status, noted.ends, noted.stays) == (429, 2, False)


def test_an_answer_that_ends_with_its_connection(read: tuple[ResponseReader, Noted]) -> None:
    made, noted = read
    made.feed(b"HTTP/1.0 200 OK\r\nx-a: b\r\n\r\nhel")
    made.feed(b"lo")
    assert (noted.data, noted.ends, noted.stays) == (b"hello", 0, False)
    made.closed()
    assert noted.ends == 1


def test_a_connection_that_ends_too_early(read: tuple[ResponseReader, Noted]) -> None:
    made, noted = read
    made.feed(ANSWERS["sized"][:-1])
    made.closed()
    assert noted.ends == 0


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_invalid_answers_are_rejected(read: tuple[ResponseReader, Noted], data: bytes) -> None:
    with pytest.raises(InvalidHttp):
        read[0].feed(data)


def test_a_head_without_an_end(read: tuple[ResponseReader, Noted]) -> None:
    read[0].feed(b"HTTP/1.1 200 OK\r\n")
    lines = b"".join(b"x-%d: %s\r\n" % (number, b"y" * 1000) for number in range(2 * MAX_HEAD_BYTES // 1000))
    with pytest.raises(InvalidHttp):
        read[0].feed(lines)


def test_faults_of_the_sink_are_not_hidden(read: tuple[ResponseReader, Noted]) -> None:
    class Broken(Noted):
        def body(self, data: bytes) -> None:
            raise ValueError("mine")

    sink: ResponseSink = Broken()
    made = type(read[0])(sink)  # type: ignore[call-arg]
    made.begin()
    with pytest.raises(ValueError, match="mine"):
        made.feed(ANSWERS["sized"])


def test_the_faster_one_is_taken() -> None:
    pytest.importorskip("httptools")
    assert isinstance(make_reader(Noted()), HttpToolsReader)


def test_the_other_one_serves_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httptools", None)
    assert isinstance(make_reader(Noted()), H11Reader)
