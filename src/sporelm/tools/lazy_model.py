"""Lazy models: metadata, and tensors that are a description plus a function that reads their blocks.

Steps wrap tensors in other tensors. Nothing is read or computed before the writer requests it, a few MiB at a time.
A block is the unit of a tensor's ggml type: one value for F32, 256 values in 144 bytes for Q4_K. Rows are whole blocks.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.gguf import GgufFile, StringArray, open_gguf
from sporelm.files.gguf.header import read_header
from sporelm.files.gguf.splits import COUNT_KEY, NUMBER_KEY, TENSORS_KEY
from sporelm.files.memory_map import map_file
from sporelm.files.tensor_messages import quote
from sporelm.quant import FORMATS, QuantFormat
from sporelm.quant.ggml_types import GGML_TYPES, GgmlType

Blocks = NDArray[np.uint8]
MAX_PIECEWISE_PERIODS = 8  # of an assembled tensor: more of them at a time are small, and are better cut as one array
SPLIT_KEYS = (NUMBER_KEY, COUNT_KEY, TENSORS_KEY)


class MetadataEntry(NamedTuple):
    """A metadata value and its kind in the file: "u32", "str", "[i32]", ..."""

    kind: str
    value: Any


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is computed when it is written.

    shape        logical and row-major
    read         (start, stop) -> the blocks start to stop - 1, uint8 [stop - start, bytes per block]
    byte_order   of the numbers in the blocks. "little", but for types known by name alone: as in their file
    is_computed  whether `read` computes (casts, scales), so that more threads help
    """

    name: str
    type_id: int
    shape: tuple[int, ...]
    read: Callable[[int, int], Blocks] = field(repr=False)
    byte_order: str = "little"
    is_computed: bool = False

    @property
    def ggml_type(self) -> GgmlType:
        return GGML_TYPES[self.type_id]

    @property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def block_count(self) -> int:
        return self.size // self.ggml_type.values

    @property
    def nbytes(self) -> int:
        return self.block_count * self.ggml_type.nbytes

    @property
    def number_format(self) -> type[QuantFormat]:
        """How to compute with it. Raises UnsupportedModel for a type that is known by name alone."""
        found = FORMATS.get(self.ggml_type.name)
        if found is None:
            raise UnsupportedModel(
                f"tensor {quote(self.name)} has type {self.ggml_type.name}, which cannot be converted to numbers"
            )
        return found


@dataclass(frozen=True)
class LazyModel:
    """A model to write: metadata and tensors, in order.

    paths   the files that it is read from
    notes   remarks for the user
    """

    metadata: Mapping[str, MetadataEntry]
    tensors: Sequence[LazyTensor]
    byte_order: str
    version: int
    paths: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        """`general.architecture`; "" without one."""
        value = self.value("general.architecture")
        return value if isinstance(value, str) else ""

    def value(self, key: str) -> Any:
        """A metadata value; `{arch}` in the key stands for the architecture. None if the key is missing."""
        if "{arch}" in key:
            key = key.replace("{arch}", self.architecture)
        entry = self.metadata.get(key)
        return None if entry is None else entry.value


def open_lazy_model(path: Path, *, alone: bool = False) -> LazyModel:
    """A GGUF file, or all files of a split model, as one model without the keys that belong to splits.

    With `alone` a file of a split model is taken for itself, these keys included. Raises ModelNotFound, ModelFileError,
    UnsupportedModel.
    """
    with _open_single_file(path) if alone else open_gguf(path) as found:
        parts = [UnmappedFile(part) for part in found.paths]
        tensors = [_make_tensor(found, name, parts) for name in found.names]
        metadata = {
            key: MetadataEntry(found.kinds[key], _detach_value(value))
            for key, value in found.metadata.items()
            if alone or key not in SPLIT_KEYS
        }
        return LazyModel(metadata, tensors, found.byte_order, found.version, found.paths)


def _open_single_file(path: Path) -> GgufFile:
    data = map_file(path)
    return GgufFile([path], [read_header(data, path)], [data])


def _detach_value(value: Any) -> Any:
    """A metadata value that looks at no file: some systems do not replace a file that is mapped."""
    if isinstance(value, list):
        return [_detach_value(item) for item in value]
    return value.copy() if isinstance(value, StringArray) else value


class UnmappedFile:
    """One file, read and not mapped: its pages are not memory of the process, and truncation is an error, not a crash.

    It is open only during a read, so that a model may have any number of files and they can be replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = _file_state(path.stat())

    def read(self, offset: int, nbytes: int) -> Blocks:
        """Bytes of the file: uint8 [nbytes]. Raises ModelFileError if it has changed since it was opened."""
        found = np.empty(nbytes, np.uint8)
        try:
            with self.path.open("rb", buffering=0) as file:
                is_same = _file_state(os.fstat(file.fileno())) == self.state
                file.seek(offset)
                done = 0
                while is_same and done < nbytes:
                    count = file.readinto(found.data[done:])
                    is_same = bool(count)
                    done = done + (count or 0)
        except OSError as reason:
            raise ModelFileError(f"{self.path} cannot be read: {reason}") from None
        if not is_same:
            raise ModelFileError(f"{self.path} changed while it was read; try again when no program writes to it")
        return found


def _file_state(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _make_tensor(file: GgufFile, name: str, parts: Sequence[UnmappedFile]) -> LazyTensor:
    """A tensor as it lies in its file."""
    info = file.tensors[name]
    part = parts[info.file_index]
    nbytes = GGML_TYPES[info.type_id].nbytes
    number_format = FORMATS.get(info.type_name)
    is_big = file.byte_orders[info.file_index] == "big"

    def read(start: int, stop: int) -> Blocks:
        blocks = part.read(info.offset + start * nbytes, (stop - start) * nbytes).reshape(-1, nbytes)
        return number_format.byteswap(blocks) if is_big and number_format is not None else blocks

    is_raw = is_big and number_format is None
    return LazyTensor(name, info.type_id, info.shape, read, "big" if is_raw else "little")


@dataclass(frozen=True)
class Segment:
    """Of every `stride` blocks of a tensor, `count` from `start` on."""

    tensor: LazyTensor
    start: int
    count: int
    stride: int


def assemble_tensor(name: str, shape: tuple[int, ...], segments: Sequence[Segment]) -> LazyTensor:
    """A tensor that takes from each segment in turn, again and again: nothing is converted. All are of one type."""
    ends = np.cumsum([segment.count for segment in segments]).tolist()
    first = segments[0].tensor
    period = ends[-1]
    nbytes = first.ggml_type.nbytes

    def read(start: int, stop: int) -> Blocks:
        low = start // period
        high = -(-stop // period)
        if high - low <= MAX_PIECEWISE_PERIODS:
            return piecewise(start, stop)
        columns = [
            segment.tensor.read(low * segment.stride, high * segment.stride).reshape(-1, segment.stride, nbytes)[
                :, segment.start : segment.start + segment.count
            ]
            for segment in segments
        ]
        blocks = np.concatenate(columns, axis=1).reshape(-1, nbytes)
        return blocks[start - low * period : stop - low * period]

    def piecewise(start: int, stop: int) -> Blocks:
        pieces = []
        while start < stop:
            turn, place = divmod(start, period)
            index = bisect_right(ends, place)
            segment = segments[index]
            left = ends[index] - place
            taken = min(stop - start, left)
            begin = turn * segment.stride + segment.start + segment.count - left
            pieces.append(segment.tensor.read(begin, begin + taken))
            start += taken
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    is_computed = any(segment.tensor.is_computed for segment in segments)
    return LazyTensor(name, first.type_id, shape, read, first.byte_order, is_computed)
