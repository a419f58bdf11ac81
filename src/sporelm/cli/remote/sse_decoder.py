"""A decoder of server-sent events with size limits, because the server is not trusted."""

from sporelm.errors import RemoteError

MAX_LINE_BYTES = 1 << 20
MAX_EVENT_BYTES = 4 << 20  # all data lines of one event
DATA_FIELDS = {b"data", b"error"}  # old llama.cpp servers send errors in a field named "error"


class SseDecoder:
    """Turns bytes into the data of complete events. Lines end with a line feed, optionally after a carriage return."""

    def __init__(self) -> None:
        self._rest = bytearray()  # of an incomplete line
        self._lines: list[bytes] = []  # of an incomplete event
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        """Return the events that are complete with this data. Raises RemoteError for a line or event over the limit."""
        self._rest += data
        if b"\n" not in data:
            self._check_size(len(self._rest), MAX_LINE_BYTES, "a line")
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [event for line in lines for event in self._decode_line(line.removesuffix(b"\r"))]

    def flush(self) -> list[str]:
        """Return the last event if no empty line ended it: some servers leave that line out."""
        rest = bytes(self._rest)
        self._rest = bytearray()
        return [*self._decode_line(rest), *self._decode_line(b"")]

    def _decode_line(self, line: bytes) -> list[str]:
        self._check_size(len(line), MAX_LINE_BYTES, "a line")
        if not line:
            event = b"\n".join(self._lines).decode("utf-8", "replace")
            self._lines = []
            self._size = 0
            return [event] if event else []
        name, _, value = line.partition(b":")
        if name in DATA_FIELDS:
            self._size += len(value)
            self._check_size(self._size, MAX_EVENT_BYTES, "an event")
            self._lines.append(value.removeprefix(b" "))
        return []

    @staticmethod
    def _check_size(size: int, limit: int, what: str) -> None:
        if size > limit:
            raise RemoteError(f"the server's stream has {what} of more than {limit >> 20} MiB: the answer is discarded")
