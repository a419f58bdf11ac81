"""The typed values of GGUF metadata: numbers, strings and arrays of either."""

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelFileError
from sporelm.files.gguf.byte_cursor import Cursor
from sporelm.files.gguf.gguf_limits import (
    MAX_ARRAY_BYTES,
    MAX_ARRAY_DEPTH,
    MAX_ARRAY_STRINGS,
    MAX_INNER_ARRAYS,
    MAX_STRING_BYTES,
)
from sporelm.files.tensor_messages import quote

STRING, ARRAY, BOOL = 8, 9, 7
# Type id in the file -> our name for it, and the letter that `struct` and numpy share.
NUMBERS: dict[int, tuple[str, str]] = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    BOOL: ("bool", "B"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
KIND_IDS: dict[str, int] = {name: key for key, (name, _) in NUMBERS.items()} | {"str": STRING}


class StringArray(Sequence[str]):
    """The strings of one array, decoded when asked for.

    Opening a file only steps over the strings; the first access by index finds where each of them starts.
    `decode_all` is the quick way to have them all. Raises ModelFileError for bytes that are not UTF-8.
    """

    def __init__(self, data: memoryview, count: int, order: str, label: str) -> None:
        self._data = data
        self._count = count
        self._order = order
        self._length = Struct(order + "Q").unpack_from
        self._label = label
        self._starts: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(self._count)[index]]
        start = int(self._index()[range(self._count)[index]])
        return self._decode(start, index)

    def __iter__(self) -> Iterator[str]:
        return iter(self.decode_all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and self.decode_all() == list(other)

    def __repr__(self) -> str:
        return f"StringArray({self._label}, {self._count} strings)"

    def stored(self, order: str) -> bytes | None:
        """Lengths and strings as they lie in the file, if that has this byte order ("<" or ">"); else None."""
        return self._data.tobytes() if order == self._order else None

    def copy(self) -> "StringArray":
        """Return the same strings in memory of their own, so that the file can be closed."""
        return StringArray(memoryview(self._data.tobytes()), self._count, self._order, self._label)

    def decode_all(self) -> list[str]:
        """Every string, in one pass."""
        data, unpack = self._data.tobytes(), self._length
        result = []
        position = 0
        try:
            for _ in range(self._count):
                start = position + 8
                position = start + unpack(data, position)[0]
                result.append(data[start:position].decode())
        except UnicodeDecodeError:
            raise self._not_utf8(len(result)) from None
        return result

    def head(self, count: int) -> list[str]:
        """The first strings, at most `count`, without a look at the others."""
        result: list[str] = []
        position = 0
        for _ in range(min(count, self._count)):
            result.append(self._decode(position, len(result)))
            position += 8 + self._length(self._data, position)[0]
        return result

    def _index(self) -> NDArray[np.int64]:
        if self._starts is None:
            starts = np.empty(self._count, np.int64)
            position = 0
            for i in range(self._count):
                starts[i] = position
                position += 8 + self._length(self._data, position)[0]
            self._starts = starts
        return self._starts

    def _decode(self, start: int, index: int) -> str:
        length = self._length(self._data, start)[0]
        try:
            return str(self._data[start + 8 : start + 8 + length], "utf-8")
        except UnicodeDecodeError:
            raise self._not_utf8(index) from None

    def _not_utf8(self, index: int) -> ModelFileError:
        return ModelFileError(f"{self._label}: string {index} is not UTF-8; the file is damaged")


class ValueReader:
    """Reads the values of one file's metadata, and counts what a hostile file could repeat without end."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.structs = {key: Struct(cursor.order + letter) for key, (_, letter) in NUMBERS.items()}
        self.inner_arrays = 0

    def read(self, key: str) -> tuple[str, Any]:
        """The kind ("u32", "str", "[i32]", "[[f32]]", ...) and the value of the entry `key`.

        Numbers become int, float or bool; arrays of numbers a numpy array; arrays of strings a StringArray; arrays of
        arrays a list.
        """
        what = f"metadata {quote(key)}"
        type_id = self.cursor.u32(f"the type of {what}")
        if type_id == STRING:
            return "str", self.cursor.string(what, MAX_STRING_BYTES)
        if type_id == ARRAY:
            return self._array(what, 1)
        if type_id not in NUMBERS:
            raise self.cursor.fail(f"{what} has value type {type_id}, known are 0 to 12; the header is damaged")
        value = self.cursor.scalar(self.structs[type_id], what)
        if type_id == BOOL:
            if value > 1:
                raise self.cursor.fail(f"{what} is a bool with the value {value}, not 0 or 1; the header is damaged")
            return "bool", bool(value)
        return NUMBERS[type_id][0], value

    def _array(self, what: str, depth: int) -> tuple[str, Any]:
        cursor = self.cursor
        if depth > MAX_ARRAY_DEPTH:
            raise cursor.fail(f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH}; the header is damaged")
        type_id = cursor.u32(f"the element type of {what}")
        if type_id == STRING:
            return "[str]", self._strings(what)
        if type_id == ARRAY:
            return self._arrays(what, depth)
        if type_id not in NUMBERS:
            raise cursor.fail(f"{what} has element type {type_id}, known are 0 to 12; the header is damaged")
        return f"[{NUMBERS[type_id][0]}]", self._numbers(what, type_id)

    def _numbers(self, what: str, type_id: int) -> NDArray[Any]:
        cursor = self.cursor
        width = self.structs[type_id].size
        count = cursor.count(f"the length of {what}", each=width, limit=MAX_ARRAY_BYTES // width)
        start = cursor.take(count * width, what)
        stored = np.dtype(cursor.order + NUMBERS[type_id][1])
        values = np.frombuffer(cursor.data, stored, count, start) if count else np.empty(0, stored)
        if type_id == BOOL:
            if count and int(values.max()) > 1:
                raise cursor.fail(f"{what} holds a bool that is not 0 or 1; the header is damaged")
            return values.astype(np.bool_)
        return values.astype(stored.newbyteorder("="))

    def _strings(self, what: str) -> StringArray:
        cursor = self.cursor
        count = cursor.count(f"the length of {what}", each=8, limit=MAX_ARRAY_STRINGS)
        start = position = cursor.position
        data, unpack = cursor.data, self.structs[10].unpack_from
        try:
            # The one loop that decides how fast a file opens: nothing but stepping over. Running out of the file shows
            # as an error of `struct`, which never reads beyond its buffer.
            for _ in range(count):
                position += 8 + unpack(data, position)[0]
        except (struct_error, OverflowError):
            raise cursor.fail(f"{what} runs beyond the end of the file; it is truncated or damaged") from None
        cursor.take(position - start, what)
        return StringArray(data[start:position], count, cursor.order, f"{cursor.path}: {what}")

    def _arrays(self, what: str, depth: int) -> tuple[str, list[Any]]:
        cursor = self.cursor
        count = cursor.count(f"the length of {what}", each=12, limit=MAX_INNER_ARRAYS)
        self.inner_arrays += count
        if self.inner_arrays > MAX_INNER_ARRAYS:
            raise cursor.fail(f"{what}: more than {MAX_INNER_ARRAYS} arrays inside arrays; the header is damaged")
        inner = [self._array(what, depth + 1) for _ in range(count)]
        kinds = {kind for kind, _ in inner}
        kind = f"[{kinds.pop()}]" if len(kinds) == 1 else "[mixed]"
        return kind, [value for _, value in inner]
