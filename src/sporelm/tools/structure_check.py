"""The structure of one GGUF file, read as far as it can be, with every fault in it rather than the first alone.

`weights.gguf` refuses a file at its first fault, which is right for loading; here reading goes on after each fault that
leaves the rest of the header readable.
"""

from itertools import pairwise
from math import prod
from pathlib import Path

from sporelm.errors import ModelError
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
from sporelm.quant.ggml_types import GGML_TYPES, ggml_type_name
from sporelm.tools.diagnostics import ERROR, WARNING, Diagnostic

MAX_DIAGNOSTICS = 200  # of one kind: a hostile header can hold a fault in each of 2^18 tensors
MAX_LLAMA_NAME_BYTES = 63  # bytes; ggml's GGML_MAX_NAME is 64 with the closing 0


class _TensorHeader:
    """One entry of the header: `start` is relative to the data section, `nbytes` None where it is not known."""

    def __init__(self, name: str, start: int, nbytes: int | None) -> None:
        self.name = name
        self.start = start
        self.nbytes = nbytes


class StructureCheck:
    """Reads one file's header and collects `findings`. Is done when made; never raises for what a file holds."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.findings: list[Diagnostic] = []
        self.alignment = DEFAULT_ALIGNMENT
        self.tensors: list[_TensorHeader] = []
        self._cursor = Cursor(data, path)
        try:
            self._read()
        except ModelError as reason:  # nothing behind it can be found
            self._add(ERROR, "structure", "", str(reason).removeprefix(f"{path}: "))

    def _add(self, level: str, check: str, where: str, message: str) -> None:
        if len(self.findings) < MAX_DIAGNOSTICS:
            self.findings.append(Diagnostic(level, check, where, message))
        elif len(self.findings) == MAX_DIAGNOSTICS:
            message = f"more than {MAX_DIAGNOSTICS} findings; the others are left out"
            self.findings.append(Diagnostic(ERROR, "structure", "", message))

    def _read(self) -> None:
        cursor = self._cursor
        start = cursor.take(4, "the magic number")
        magic = bytes(self.data[start : start + 4])
        if magic != MAGIC:
            raise cursor.fail(f"starts with {magic!r}, not {MAGIC!r}; it is not a GGUF file")
        version = cursor.u32("the version")
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version & 0xFFFF == 0 and swapped:
            cursor.set_order(">")
            version = swapped
        if version not in VERSIONS:
            raise cursor.fail(f"GGUF version {version} is not known, only 2 and 3")
        tensor_count = cursor.count("the number of tensors", each=24, limit=MAX_TENSORS)
        key_count = cursor.count("the number of metadata entries", each=13, limit=MAX_KEYS)
        self._metadata(key_count)
        self._tensor_entries(tensor_count)
        self._places(-(-cursor.position // self.alignment) * self.alignment)

    def _metadata(self, count: int) -> None:
        reader = ValueReader(self._cursor)
        seen: set[str] = set()
        for number in range(count):
            key = self._cursor.string(f"the name of metadata entry {number}", MAX_KEY_BYTES)
            kind, value = reader.read(key)
            if key in seen:
                self._add(ERROR, "structure", key, "this metadata key appears more than once")
            seen.add(key)
            if key != ALIGNMENT_KEY:
                continue
            if kind != "u32":
                self._add(ERROR, "metadata", key, f"is of type {kind}, it must be u32")
            elif not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
                self._add(ERROR, "metadata", key, f"is {value}, it must be a power of two up to {MAX_ALIGNMENT}")
            else:
                self.alignment = value
                if value % 8:
                    self._add(WARNING, "metadata", key, f"is {value}; the specification wants a multiple of 8")

    def _tensor_entries(self, count: int) -> None:
        seen: set[str] = set()
        for _ in range(count):
            cursor = self._cursor
            name = cursor.string("a tensor's name", MAX_TENSOR_NAME_BYTES)
            rank = cursor.u32("the rank of a tensor")
            if rank > MAX_RANK:  # its length decides where the next entry begins
                raise cursor.fail(f"tensor {name[:80]!r} has {rank} axes, the limit is {MAX_RANK}")
            shape = [cursor.u64("the shape of a tensor") for _ in range(rank)][::-1]
            type_id = cursor.u32("the type of a tensor")
            start = cursor.u64("the offset of a tensor")
            if name in seen:
                self._add(ERROR, "structure", name, "this tensor appears more than once")
            seen.add(name)
            if len(name.encode()) > MAX_LLAMA_NAME_BYTES:
                self._add(
                    WARNING, "structure", name, f"the name is longer than the {MAX_LLAMA_NAME_BYTES} bytes ggml has"
                )
            self.tensors.append(_TensorHeader(name, start, self._nbytes(name, shape, type_id)))

    def _nbytes(self, name: str, shape: list[int], type_id: int) -> int | None:
        known = GGML_TYPES.get(type_id)
        width = shape[-1] if shape else 1
        if 0 in shape:
            self._add(ERROR, "structure", name, f"shape {shape} has an axis of length 0")
            return None
        if known is None:
            self._add(ERROR, "structure", name, f"type {ggml_type_name(type_id)} is not known")
            return None
        if width % known.values:
            message = f"rows of {width} values are not a multiple of the {known.values} of a {known.name} block"
            self._add(ERROR, "structure", name, message)
            return None
        return prod(shape) // known.values * known.nbytes

    def _places(self, data_start: int) -> None:
        """Alignment, bounds, overlaps and gaps of the tensors' data, which begins at `data_start`."""
        size = len(self.data) - data_start
        if self.tensors and size <= 0:
            message = (
                f"has no tensor data (got {len(self.data)} bytes; the header has {data_start}); it is truncated or "
            )
            self._add(ERROR, "place", "", f"{message}damaged, or was written with --no-data")
            return
        for tensor in self.tensors:
            if tensor.start % self.alignment:
                self._add(ERROR, "place", tensor.name, f"offset {tensor.start} is not a multiple of {self.alignment}")
            if tensor.nbytes is not None and tensor.start + tensor.nbytes > size:
                end = data_start + tensor.start + tensor.nbytes
                message = f"ends at byte {end}, the file at {len(self.data)}; it is truncated or damaged"
                self._add(ERROR, "place", tensor.name, message)
        placed = sorted((tensor for tensor in self.tensors if tensor.nbytes is not None), key=lambda it: it.start)
        if len(placed) < len(self.tensors):
            return  # tensors of unknown size have no known end
        end = 0
        last = "the header"
        for tensor in placed:
            assert tensor.nbytes is not None
            expected = -(-end // self.alignment) * self.alignment
            if tensor.start < end:
                self._add(ERROR, "place", tensor.name, f"overlaps {last} by {end - tensor.start} bytes")
            elif tensor.start > expected:
                self._add(WARNING, "place", tensor.name, f"{tensor.start - expected} unused bytes lie before it")
            if tensor.start + tensor.nbytes > end:
                end = tensor.start + tensor.nbytes
                last = repr(tensor.name[:80])
        spare = size - -(-end // self.alignment) * self.alignment
        if spare > 0:
            self._add(WARNING, "place", "", f"{spare} unused bytes lie behind the last tensor")
        if any(before.start > after.start for before, after in pairwise(self.tensors)):
            self._add(WARNING, "place", "", "the tensors' data is not in the order of the header")


def check_structure(path: Path, data: memoryview) -> list[Diagnostic]:
    """Every fault in the structure of a GGUF file whose bytes are `data`."""
    return StructureCheck(path, data).findings
