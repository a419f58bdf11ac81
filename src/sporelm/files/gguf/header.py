"""The header of one GGUF file: version, byte order, metadata, and where each tensor lies.

A header is a claim: every count, length, type and offset in it is checked against the size of the file before it
is used.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from sporelm.errors import UnsupportedModel
from sporelm.files.gguf.byte_cursor import Cursor
from sporelm.files.gguf.gguf_limits import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_RANK,
    MAX_TENSOR_NAME_BYTES,
    MAX_TENSORS,
    VERSIONS,
)
from sporelm.files.gguf.metadata_values import ValueReader
from sporelm.files.tensor_messages import quote
from sporelm.quant.ggml_types import GGML_TYPES, ggml_type_name

NO_DATA_HINT = ", or was written with --no-data: 'spore gguf show' and 'diff --no-data' read it"


class GgufTensorInfo(NamedTuple):
    """The header's entry of one tensor.

    shape        logical and row-major (the file stores the innermost axis first)
    offset       of its first byte from the start of its file
    file_index   of the split file that holds it, from 0
    """

    name: str
    type_name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file_index: int = 0


@dataclass(frozen=True)
class Header:
    """Everything in one file but the tensors' data. `has_data` is False if the file ends after its header."""

    version: int
    byte_order: str
    alignment: int
    metadata: dict[str, Any]
    kinds: dict[str, str]
    tensors: dict[str, GgufTensorInfo]
    has_data: bool = True


def read_header(data: memoryview, path: Path, *, needs_data: bool = True) -> Header:
    """Read and check the header of the file whose bytes are `data`.

    Without `needs_data` the file may end after its header, as files written with `--no-data` do.
    Raises ModelFileError for anything the format or the size of the file forbids, UnsupportedModel for versions and
    tensor types that are not known.
    """
    cursor = Cursor(data, path)
    version = _version(cursor)
    tensor_count = cursor.count("the number of tensors", each=24, limit=MAX_TENSORS)
    key_count = cursor.count("the number of metadata entries", each=13, limit=MAX_KEYS)
    metadata, kinds = _metadata(cursor, key_count)
    alignment = _alignment(cursor, metadata, kinds)
    infos = [_tensor_info(cursor) for _ in range(tensor_count)]
    data_start = -(-cursor.position // alignment) * alignment
    has_data = not infos or len(data) > data_start
    tensors = _set_offsets(cursor, infos, data_start, alignment, checks_end=has_data or needs_data)
    byte_order = "big" if cursor.order == ">" else "little"
    return Header(version, byte_order, alignment, metadata, kinds, tensors, has_data)


def _version(cursor: Cursor) -> int:
    """Check the magic, find the byte order, return the version."""
    start = cursor.take(4, "the magic number")
    magic = bytes(cursor.data[start : start + 4])
    if magic != MAGIC:
        raise cursor.fail(f"starts with {magic!r}, not {MAGIC!r}; it is not a GGUF file")
    version = cursor.u32("the version")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version & 0xFFFF == 0 and swapped:  # a small number in the other byte order
        cursor.set_order(">")
        version = swapped
    if version not in VERSIONS:
        raise UnsupportedModel(
            f"{cursor.path}: GGUF version {version} is not supported, only 2 and 3; convert the file with a newer tool"
        )
    return version


def _metadata(cursor: Cursor, count: int) -> tuple[dict[str, Any], dict[str, str]]:
    metadata: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    reader = ValueReader(cursor)
    for number in range(count):
        key = cursor.string(f"the name of metadata entry {number}", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.fail(f"metadata {quote(key)} appears twice; the header is damaged")
        kinds[key], metadata[key] = reader.read(key)
    return metadata, kinds


def _alignment(cursor: Cursor, metadata: dict[str, Any], kinds: dict[str, str]) -> int:
    value = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    kind = kinds.get(ALIGNMENT_KEY, "u32")
    if kind != "u32":
        raise cursor.fail(f"{ALIGNMENT_KEY} is of type {kind}, it must be u32")
    alignment = int(value)
    if alignment < 1 or alignment > MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.fail(f"{ALIGNMENT_KEY} is {alignment}, it must be a power of two up to {MAX_ALIGNMENT}")
    return alignment


def _tensor_info(cursor: Cursor) -> GgufTensorInfo:
    """One tensor's entry, its offset still relative to the data section."""
    name = cursor.string("a tensor's name", MAX_TENSOR_NAME_BYTES)
    what = f"tensor {quote(name)}"
    rank = cursor.u32(f"the rank of {what}")
    if rank > MAX_RANK:
        raise cursor.fail(f"{what} has {rank} axes, the limit is {MAX_RANK}; the header is damaged")
    shape = tuple(cursor.u64(f"the shape of {what}") for _ in range(rank))[::-1]
    type_id = cursor.u32(f"the type of {what}")
    offset = cursor.u64(f"the offset of {what}")
    if 0 in shape:
        raise cursor.fail(f"{what} has shape {list(shape)}, an axis of length 0; the header is damaged")
    known = GGML_TYPES.get(type_id)
    if known is None:
        raise UnsupportedModel(
            f"{cursor.path}: {what} has tensor type {ggml_type_name(type_id)}, which is not known; the file is"
            " damaged, or written by a newer or a very old tool"
        )
    width = shape[-1] if shape else 1
    if width % known.values:
        raise cursor.fail(
            f"{what} has rows of {width} values, not a multiple of the {known.values} of a {known.name} block"
        )
    return GgufTensorInfo(name, known.name, type_id, shape, offset, prod(shape) // known.values * known.nbytes)


def _set_offsets(
    cursor: Cursor, infos: list[GgufTensorInfo], data_start: int, alignment: int, *, checks_end: bool
) -> dict[str, GgufTensorInfo]:
    """Check that the tensors lie in the file (without `checks_end`: a file without data), aligned and apart; give them
    offsets from the start of the file."""
    size = len(cursor.data)
    tensors: dict[str, GgufTensorInfo] = {}
    for info in infos:
        if info.name in tensors:
            raise cursor.fail(f"tensor {quote(info.name)} appears twice; the header is damaged")
        if info.offset % alignment:
            raise cursor.fail(f"tensor {quote(info.name)} has offset {info.offset}, not a multiple of {alignment}")
        placed = info._replace(offset=data_start + info.offset)
        if checks_end and placed.offset + placed.nbytes > size:
            raise cursor.fail(
                f"tensor {quote(info.name)} ends at byte {placed.offset + placed.nbytes}, the file at {size};"
                f" it is truncated or damaged{NO_DATA_HINT if size <= data_start else ''}"
            )
        tensors[info.name] = placed
    for before, after in pairwise(sorted(tensors.values(), key=lambda info: info.offset)):
        if before.offset + before.nbytes > after.offset:
            raise cursor.fail(f"tensors {quote(before.name)} and {quote(after.name)} overlap; the header is damaged")
    return tensors
