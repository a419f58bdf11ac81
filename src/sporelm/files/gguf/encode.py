"""Metadata values as the bytes of a GGUF file."""

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Any

import numpy as np

from sporelm.errors import RequestError
from sporelm.files.gguf.gguf_limits import MAX_ARRAY_DEPTH
from sporelm.files.gguf.metadata_values import ARRAY, BOOL, KIND_IDS, NUMBERS, STRING, StringArray
from sporelm.files.tensor_messages import quote

_KINDS_OF_NUMPY = {
    np.dtype(letter): name for key, (name, letter) in NUMBERS.items() if key != BOOL
} | {np.dtype(np.bool_): "bool"}  # fmt: skip


def utf8(text: str) -> bytes:
    """The bytes of a text. Raises RequestError for half a surrogate pair, which has none."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{quote(text)} cannot be written: it is not valid Unicode") from None


def encode_string(order: str, text: str) -> bytes:
    """An u64 length and UTF-8."""
    raw = utf8(text)
    return len(raw).to_bytes(8, "little" if order == "<" else "big") + raw


def kind_of(key: str, value: Any) -> str:
    """The kind a Python value is stored as when none is given.

    A whole number takes the first of u32, i32, u64, i64 that holds it, a list of them the first of i32, u32, i64, u64;
    floats take f32, numpy arrays their own type.
    Raises RequestError for a value that GGUF has no type for.
    """
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, (int, np.integer)):
        kind = _whole_kind(("u32", "i32", "u64", "i64"), int(value), int(value))
        if kind:
            return kind
    if isinstance(value, (float, np.floating)):
        return "f32"
    if isinstance(value, str):
        return "str"
    if isinstance(value, StringArray):
        return "[str]"
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype in _KINDS_OF_NUMPY:
        return f"[{_KINDS_OF_NUMPY[value.dtype]}]"
    if isinstance(value, Sequence) and len(value):
        if all(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in value):
            return f"[{_whole_kind(('i32', 'u32', 'i64', 'u64'), min(value), max(value)) or 'none'}]"
        kinds = {kind_of(key, item) for item in value}
        if len(kinds) == 1:
            return f"[{kinds.pop()}]"
    raise RequestError(f"metadata {quote(key)}: no GGUF type for {quote(repr(value))}; give its kind")


def _whole_kind(kinds: Sequence[str], low: int, high: int) -> str | None:
    """The first of these integer kinds that holds all numbers from low to high."""
    for kind in kinds:
        bounds = np.iinfo(NUMBERS[KIND_IDS[kind]][1])
        if bounds.min <= low and high <= bounds.max:
            return kind
    return None


def encode_value(order: str, key: str, kind: str, value: Any) -> Iterator[bytes]:
    """The type and the bytes of a value of this kind ("u32", "str", "[i32]", "[[f32]]", ...).

    Raises RequestError if the value does not fit the kind, or there is no such kind.
    """
    if kind in KIND_IDS:
        yield Struct(order + "I").pack(KIND_IDS[kind])
        yield _scalar(order, key, kind, value)
    elif kind.startswith("[") and kind.endswith("]"):
        yield Struct(order + "I").pack(ARRAY)
        yield from _array(order, key, kind, value, 1)
    else:
        raise RequestError(f"metadata {quote(key)}: kind {quote(kind)} is not one of {', '.join(KIND_IDS)} or [kind]")


def _scalar(order: str, key: str, kind: str, value: Any) -> bytes:
    if kind == "str":
        if not isinstance(value, str):
            raise _misfit(key, kind, value)
        return encode_string(order, value)
    try:
        return Struct(order + NUMBERS[KIND_IDS[kind]][1]).pack(bool(value) if kind == "bool" else value)
    except (struct_error, OverflowError, TypeError):
        raise _misfit(key, kind, value) from None


def _array(order: str, key: str, kind: str, value: Any, depth: int) -> Iterator[bytes]:
    """Element type, length and elements; the id of the array type itself is written by the caller."""
    element = kind[1:-1]
    if depth > MAX_ARRAY_DEPTH or isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__len__"):
        raise _misfit(key, kind, value)
    header = Struct(order + "IQ")
    if element.startswith("["):
        yield header.pack(ARRAY, len(value))
        for item in value:
            yield from _array(order, key, element, item, depth + 1)
    elif element == "str":
        yield header.pack(STRING, len(value))
        stored = value.stored(order) if isinstance(value, StringArray) else None
        if stored is not None:
            yield stored
            return
        for item in value:
            if not isinstance(item, str):
                raise _misfit(key, kind, item)
            yield encode_string(order, item)
    elif element in KIND_IDS:
        yield header.pack(KIND_IDS[element], len(value))
        yield _numbers(order, key, kind, value)
    elif element == "mixed":  # how the reader names an array of arrays of several kinds, and one of no arrays
        yield header.pack(ARRAY, len(value))
        for item in value:
            is_flat = isinstance(item, (np.ndarray, StringArray))
            yield from _array(order, key, kind_of(key, item) if is_flat else "[mixed]", item, depth + 1)
    elif len(value):
        raise RequestError(f"metadata {quote(key)}: arrays of kind {quote(kind)} cannot be written")
    else:  # an empty array of arrays, whose inner kind is unknown
        yield header.pack(ARRAY, 0)


def _numbers(order: str, key: str, kind: str, value: Any) -> bytes:
    """The numbers of one array, each checked to keep its value."""
    name, letter = NUMBERS[KIND_IDS[kind[1:-1]]]
    wanted = np.dtype(order + letter)
    if not len(value):
        return b""
    if isinstance(value, np.ndarray):
        given = value
    else:  # whole numbers stay as they are: numpy would make floats of [1, 2^64 - 1]
        is_whole = all(isinstance(item, (int, np.integer)) for item in value)
        try:
            given = np.asarray(value, object if is_whole else None)
        except ValueError:  # arrays of several lengths
            raise _misfit(key, kind, value) from None
    if given.ndim != 1 or given.dtype.kind not in "biufO":
        raise _misfit(key, kind, value)
    if name == "bool":
        fits = all(item in (0, 1) for item in given.tolist())
    elif wanted.kind in "iu":
        bounds = np.iinfo(wanted)
        fits = given.dtype.kind in "biuO" and int(given.min()) >= bounds.min and int(given.max()) <= bounds.max
    else:
        fits = True
    if not fits:
        raise _misfit(key, kind, value)
    try:
        with np.errstate(over="ignore"):
            return given.astype(wanted).tobytes()
    except OverflowError:
        raise _misfit(key, kind, value) from None


def _misfit(key: str, kind: str, value: Any) -> RequestError:
    return RequestError(f"metadata {quote(key)}: {quote(repr(value))} does not fit kind {kind}")
