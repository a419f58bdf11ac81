"""Server-sent events out of a stream of bytes, within limits: what a server sends is not trusted."""

from sporelm.errors import RemoteError

LONGEST_LINE = 1 << 20  # bytes
LONGEST_EVENT = 4 << 20  # bytes of all data lines of one event
FIELDS = {b"data", b"error"}  # llama.cpp's older servers tell failures in a field of that name


class Events:
    """Bytes in, the data of whole events out. Lines end with a line feed, a carriage return before it or not."""

    def __init__(self) -> None:
        self._rest = bytearray()  # of a line that has not ended
        self._lines: list[bytes] = []  # of an event that has not ended
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        """The events that end in this data. Raises RemoteError for a line or an event that is too long."""
        self._rest += data
        if b"\n" not in data:
            self._check(len(self._rest), LONGEST_LINE, "a line")
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [event for line in lines for event in self._line(line.removesuffix(b"\r"))]

    def end(self) -> list[str]:
        """The event that no empty line ended, if there is one: some servers leave out the last."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [*self._line(rest), *self._line(b"")]

    def _line(self, line: bytes) -> list[str]:
        self._check(len(line), LONGEST_LINE, "a line")
        if not line:
            event = b"\n".join(self._lines).decode("utf-8", "replace")
            self._lines, self._size = [], 0
            return [event] if event else []
        name, _, value = line.partition(b":")
        if name in FIELDS:
            self._size += len(value)
            self._check(self._size, LONGEST_EVENT, "an event")
            self._lines.append(value.removeprefix(b" "))
        return []

    @staticmethod
    def _check(size: int, most: int, what: str) -> None:
        if size > most:
            raise RemoteError(f"the server sent {what} of more than {most >> 20} MiB in its stream: that is no answer")
