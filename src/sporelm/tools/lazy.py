"""Models as they will be written: metadata, and tensors that are a description plus a function giving their blocks.

Steps wrap tensors in others; nothing is read or computed before the writer asks for it, and then a few MiB at a time.
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
from sporelm.quant import FORMATS, QuantFormat
from sporelm.quant.ggml_types import GGML_TYPES, GgmlType
from sporelm.weights.gguf import GgufFile, StringArray, open_gguf
from sporelm.weights.gguf.header import read_header
from sporelm.weights.gguf.splits import COUNT_KEY, NUMBER_KEY, TENSORS_KEY
from sporelm.weights.mapped import map_file
from sporelm.weights.messages import shown

Blocks = NDArray[np.uint8]
FEW_PERIODS = 8  # of an assembled tensor: more of them at a time are small, and are better cut as one array
SPLIT_KEYS = (NUMBER_KEY, COUNT_KEY, TENSORS_KEY)


class Entry(NamedTuple):
    """A metadata value and its kind in the file: "u32", "str", "[i32]", ..."""

    kind: str
    value: Any


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is computed when it is written.

    shape        logical and row-major
    read         (start, stop) -> the blocks start to stop - 1, uint8 [stop - start, bytes per block]
    byte_order   of the numbers in the blocks. "little", but for types known by name alone: as in their file
    work         whether `read` computes (casts, scales), so that more threads pay
    """

    name: str
    type_id: int
    shape: tuple[int, ...]
    read: Callable[[int, int], Blocks] = field(repr=False)
    byte_order: str = "little"
    work: bool = False

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
                f"tensor {shown(self.name)} has type {self.ggml_type.name}, which we cannot compute with"
            )
        return found


@dataclass(frozen=True)
class Model:
    """What is to be written: metadata and tensors, in order.

    `paths` are the files it is read from, `notes` what a user should know of what was made.
    """

    metadata: Mapping[str, Entry]
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
        """A metadata value; `{arch}` in the key stands for the architecture. None if it is not there."""
        if "{arch}" in key:
            key = key.replace("{arch}", self.architecture)
        entry = self.metadata.get(key)
        return None if entry is None else entry.value


def open_model(path: Path, *, alone: bool = False) -> Model:
    """A GGUF file, or all files of a split model, as one model without the keys that belong to splits.

    With `alone` a file of a split model is taken for itself, these keys included. Raises ModelNotFound, ModelFileError,
    UnsupportedModel.
    """
    with _open_alone(path) if alone else open_gguf(path) as found:
        parts = [FilePart(part) for part in found.paths]
        tensors = [_stored(found, name, parts) for name in found.names]
        metadata = {
            key: Entry(found.kinds[key], _kept(value))
            for key, value in found.metadata.items()
            if alone or key not in SPLIT_KEYS
        }
        return Model(metadata, tensors, found.byte_order, found.version, found.paths)


def _open_alone(path: Path) -> GgufFile:
    data = map_file(path)
    return GgufFile([path], [read_header(data, path)], [data])


def _kept(value: Any) -> Any:
    """A metadata value that looks at no file: some systems do not replace a file that is mapped."""
    if isinstance(value, list):
        return [_kept(item) for item in value]
    return value.kept() if isinstance(value, StringArray) else value


class FilePart:
    """One file. It is read and not mapped: read pages are no memory of ours, and a file cut short is an error and not a
    crash. It is open only while it is read, so that a model may have any number of files, and may be replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = _state(path.stat())

    def read(self, offset: int, nbytes: int) -> Blocks:
        """Bytes of the file: uint8 [nbytes]. Raises ModelFileError if it has changed since it was opened."""
        found = np.empty(nbytes, np.uint8)
        try:
            with self.path.open("rb", buffering=0) as file:
                is_same = _state(os.fstat(file.fileno())) == self.state
                file.seek(offset)
                done = 0
                while is_same and done < nbytes:
                    count = file.readinto(found.data[done:])
                    is_same, done = bool(count), done + (count or 0)
        except OSError as reason:
            raise ModelFileError(f"{self.path} cannot be read: {reason}") from None
        if not is_same:
            raise ModelFileError(f"{self.path} changed while it was read; try again when nobody writes to it")
        return found


def _state(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _stored(file: GgufFile, name: str, parts: Sequence[FilePart]) -> LazyTensor:
    """A tensor as it lies in its file."""
    info = file.tensors[name]
    part, nbytes = parts[info.part], GGML_TYPES[info.type_id].nbytes
    number_format = FORMATS.get(info.type_name)
    is_big = file.byte_orders[info.part] == "big"

    def read(start: int, stop: int) -> Blocks:
        blocks = part.read(info.offset + start * nbytes, (stop - start) * nbytes).reshape(-1, nbytes)
        return number_format.swapped(blocks) if is_big and number_format is not None else blocks

    is_raw = is_big and number_format is None
    return LazyTensor(name, info.type_id, info.shape, read, "big" if is_raw else "little")


@dataclass(frozen=True)
class Segment:
    """Of every `stride` blocks of a tensor, `count` from `start` on."""

    tensor: LazyTensor
    start: int
    count: int
    stride: int


def assembled(name: str, shape: tuple[int, ...], segments: Sequence[Segment]) -> LazyTensor:
    """A tensor that takes from each segment in turn, again and again: nothing is converted. All are of one type."""
    ends = np.cumsum([segment.count for segment in segments]).tolist()
    first, period = segments[0].tensor, ends[-1]
    nbytes = first.ggml_type.nbytes

    def read(start: int, stop: int) -> Blocks:
        low, high = start // period, -(-stop // period)
        if high - low <= FEW_PERIODS:
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
            segment, left = segments[index], ends[index] - place
            taken = min(stop - start, left)
            begin = turn * segment.stride + segment.start + segment.count - left
            pieces.append(segment.tensor.read(begin, begin + taken))
            start += taken
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    work = any(segment.tensor.work for segment in segments)
    return LazyTensor(name, first.type_id, shape, read, first.byte_order, work)
