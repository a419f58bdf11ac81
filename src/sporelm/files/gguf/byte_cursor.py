"""A cursor over a file's bytes, with bounds checks."""

from pathlib import Path
from struct import Struct

from sporelm.errors import ModelFileError


class Cursor:
    """Reads numbers and strings of a given byte order ("<" or ">") one after the other, each checked first.

    Every method names in `what` the thing it reads and raises ModelFileError where the file does not hold it.
    """

    def __init__(self, data: memoryview, path: Path, order: str = "<") -> None:
        self.data = data
        self.path = path
        self.position = 0
        self.set_order(order)

    def set_order(self, order: str) -> None:
        self.order = order
        self._u32 = Struct(order + "I")
        self._u64 = Struct(order + "Q")

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def fail(self, message: str) -> ModelFileError:
        """The error for this file; to be raised by the caller."""
        return ModelFileError(f"{self.path}: {message}")

    def take(self, nbytes: int, what: str) -> int:
        """Step over nbytes and return where they start."""
        start = self.position
        if nbytes > len(self.data) - start:
            raise self.fail(
                f"{what} needs {nbytes} bytes at {start}, the file ends at {len(self.data)}; it is truncated or damaged"
            )
        self.position = start + nbytes
        return start

    def scalar(self, layout: Struct, what: str) -> int | float:
        value: int | float = layout.unpack_from(self.data, self.take(layout.size, what))[0]
        return value

    def u32(self, what: str) -> int:
        value: int = self._u32.unpack_from(self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = self._u64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def count(self, what: str, *, each: int, limit: int) -> int:
        """A u64 count of things that take at least `each` bytes of the rest of the file."""
        value = self.u64(what)
        if value > limit:
            raise self.fail(f"{what} is {value}, the limit is {limit}; the header is damaged")
        if value * each > self.remaining:
            raise self.fail(f"{what} is {value}, the {self.remaining} bytes left cannot hold that; it is damaged")
        return value

    def string(self, what: str, limit: int) -> str:
        """A u64 length and that many bytes of UTF-8."""
        length = self.u64(f"the length of {what}")
        if length > limit:
            raise self.fail(f"{what} is {length} bytes long, the limit is {limit}; the header is damaged")
        start = self.take(length, what)
        try:
            return str(self.data[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} at byte {start} is not UTF-8; the header is damaged") from None
