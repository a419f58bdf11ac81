"""Writing GGUF files."""

from collections.abc import Callable, Iterable, Iterator
from math import prod
from os import PathLike
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import RequestError
from sporelm.files.atomic_write import Job, write_beside
from sporelm.files.gguf.encode import encode_string, encode_value, kind_of, utf8
from sporelm.files.gguf.gguf_limits import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_KEY_BYTES,
    MAX_RANK,
    MAX_TENSOR_NAME_BYTES,
    VERSIONS,
)
from sporelm.files.tensor_messages import quote
from sporelm.quant import F16, F32, QuantFormat
from sporelm.quant.ggml_types import GGML_TYPES, ggml_type_name
from sporelm.quant.stored_tensor import StoredTensor

CHUNK_BYTES = 4 << 20
_FORMATS_OF_NUMPY: dict[np.dtype[Any], type[QuantFormat]] = {
    np.dtype(np.float32): F32,
    np.dtype(np.float16): F16,
}


Chunk = bytes | memoryview | NDArray[np.uint8]


class _Planned(NamedTuple):
    name: str
    type_id: int
    shape: tuple[int, ...]
    nbytes: int
    produce: Callable[[], Iterable[Chunk]]  # in the byte order of the file


class GgufWriter:
    """Collects metadata and tensors, then writes them in one go.

    writer = GgufWriter("model.gguf")
    writer.add("general.architecture", "llama")
    writer.add_tensor("output.weight", tensor)
    writer.write()

    The tensors are aligned to `general.alignment` if that is added, else to 32 bytes. Without `has_data` the file ends
    after its header: metadata, and the names, types, shapes and offsets of the tensors.
    """

    def __init__(
        self, path: str | PathLike[str], *, byte_order: str = "little", version: int = 3, has_data: bool = True
    ) -> None:
        """Nothing is written yet. Raises RequestError for a byte order or version that does not exist."""
        if byte_order not in ("little", "big") or version not in VERSIONS:
            raise RequestError(f"GGUF {version} in {byte_order!r} byte order; there are 2 and 3, 'little' and 'big'")
        self.path = Path(path)
        self.version = version
        self.has_data = has_data
        self._order = "<" if byte_order == "little" else ">"
        self._entries: dict[str, list[bytes]] = {}
        self._tensors: dict[str, _Planned] = {}
        self._alignment = DEFAULT_ALIGNMENT

    def add(self, key: str, value: Any, kind: str | None = None) -> None:
        """Add a metadata entry: a number, bool or string, or a sequence of them (also of sequences).

        `kind` is the type in the file: u8 i8 u16 i16 u32 i32 f32 bool str u64 i64 f64, "[i32]" for an array, "[[i32]]"
        for an array of arrays; without it the type follows from the value. Raises RequestError if the key is there
        already, or the value does not fit.
        """
        if not key or len(utf8(key)) > MAX_KEY_BYTES:
            raise RequestError(f"metadata key {quote(key)} must have 1 to {MAX_KEY_BYTES} bytes")
        if key in self._entries:
            raise RequestError(f"metadata {quote(key)} was added already")
        kind = kind_of(key, value) if kind is None else kind
        if key == ALIGNMENT_KEY:
            is_whole = kind == "u32" and isinstance(value, (int, np.integer))
            if not is_whole or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
                raise RequestError(f"{ALIGNMENT_KEY} {value!r} must be a u32, a power of two up to {MAX_ALIGNMENT}")
            self._alignment = int(value)
        self._entries[key] = list(encode_value(self._order, key, kind, value))

    def add_tensor(self, name: str, tensor: StoredTensor | NDArray[Any]) -> None:
        """Add a tensor: a StoredTensor in its own number format, or a float32 or float16 array. It is not copied.

        Raises RequestError if the name is there already, or the array is of another type.
        """
        if not isinstance(tensor, StoredTensor):
            number_format = _FORMATS_OF_NUMPY.get(tensor.dtype.newbyteorder("="))
            if number_format is None:
                raise RequestError(
                    f"tensor {quote(name)}: {tensor.dtype} arrays cannot be written; quantize them first"
                )
            little = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).reshape(-1)
            tensor = StoredTensor(name, number_format, tuple(tensor.shape), little.view(np.uint8))
        kept = tensor
        self.add_later(name, kept.format, kept.shape, lambda: kept)

    def add_later(
        self,
        name: str,
        number_format: type[QuantFormat],
        shape: tuple[int, ...],
        produce: Callable[[], StoredTensor],
    ) -> None:
        """Add a tensor that `produce` makes when it is written, so that only one is in memory at a time.

        Raises RequestError if the name is there already, or the format cannot store this shape.
        """

        def chunks() -> Iterator[Chunk]:
            tensor = produce()
            if (tensor.format, tensor.shape) != (number_format, tuple(shape)):
                raise RequestError(
                    f"tensor {quote(name)} was announced as {number_format.name} {list(shape)},"
                    f" made as {tensor.format.name} {list(tensor.shape)}"
                )
            return self._chunks(tensor)

        self.add_chunks(name, number_format.ggml_id, shape, chunks)

    def add_chunks(
        self, name: str, type_id: int, shape: tuple[int, ...], produce: Callable[[], Iterable[Chunk]]
    ) -> None:
        """Add a tensor of any ggml type, whose bytes `produce` gives piece by piece when it is written.

        The bytes go into the file as they are, so they must be in its byte order. Raises RequestError if the name is
        there already, the type is not known, or the type cannot store this shape.
        """
        if not name or len(utf8(name)) > MAX_TENSOR_NAME_BYTES:
            raise RequestError(f"tensor name {quote(name)} must have 1 to {MAX_TENSOR_NAME_BYTES} bytes")
        if name in self._tensors:
            raise RequestError(f"tensor {quote(name)} was added already")
        if len(shape) > MAX_RANK or prod(shape) < 1:
            raise RequestError(
                f"tensor {quote(name)}: shape {list(shape)} must have at most {MAX_RANK} axes, none of 0"
            )
        known, width = GGML_TYPES.get(type_id), shape[-1] if shape else 1
        if known is None:
            raise RequestError(f"tensor {quote(name)}: there is no tensor type {ggml_type_name(type_id)}")
        if width % known.values:
            raise RequestError(
                f"tensor {quote(name)}: {known.name} stores {known.values} values per block: rows of {width} values"
                " do not fit"
            )
        nbytes = prod(shape) // known.values * known.nbytes
        self._tensors[name] = _Planned(name, type_id, tuple(shape), nbytes, produce)

    @property
    def nbytes(self) -> int:
        """The size of the file as it is planned now, in bytes."""
        size = self._aligned(sum(len(piece) for piece in self._header()))
        return size + sum(self._aligned(planned.nbytes) for planned in self._tensors.values() if self.has_data)

    def write(self) -> int:
        """Write the file and return its size in bytes.

        It is written beside its place and then renamed, so that no reader sees half a file and a failure leaves the old
        one. Raises RequestError if the file cannot be written.
        """
        sizes: list[int] = []
        write_beside([Job(self.path, lambda file: sizes.append(self.write_to(file)))])
        return sizes[0]

    def write_to(self, file: BinaryIO, advance: Callable[[int], object] = lambda nbytes: None) -> int:
        """Write everything to an empty file that is open, and return its size; `advance` is told of bytes written.

        Raises RequestError for a tensor whose bytes are not as many as its shape needs.
        """
        for piece in self._header():
            file.write(piece)
        for planned in self._tensors.values() if self.has_data else ():
            self._pad(file)
            written = 0
            for chunk in planned.produce():
                data = chunk.reshape(-1).data if isinstance(chunk, np.ndarray) else chunk
                file.write(data)
                written += len(data)
                advance(len(data))
            if written != planned.nbytes:
                raise RequestError(
                    f"tensor {quote(planned.name)} needs {planned.nbytes} bytes, {written} were made for it"
                )
        self._pad(file)
        return file.tell()

    def _aligned(self, nbytes: int) -> int:
        return -(-nbytes // self._alignment) * self._alignment

    def _pad(self, file: BinaryIO) -> None:
        file.write(bytes(-file.tell() % self._alignment))

    def _header(self) -> Iterator[bytes]:
        counts = Struct(self._order + "IQQ")
        yield MAGIC + counts.pack(self.version, len(self._tensors), len(self._entries))
        for key, pieces in self._entries.items():
            yield encode_string(self._order, key)
            yield from pieces
        offset = 0
        for planned in self._tensors.values():
            yield encode_string(self._order, planned.name)
            rank = len(planned.shape)
            entry = Struct(f"{self._order}I{rank}QIQ")
            yield entry.pack(rank, *reversed(planned.shape), planned.type_id, offset)
            offset += self._aligned(planned.nbytes)

    def _chunks(self, tensor: StoredTensor) -> Iterator[NDArray[np.uint8]]:
        """The bytes of a tensor in the file's byte order, a few MiB at a time."""
        blocks = tensor.blocks.reshape(-1, tensor.format.nbytes)
        step = max(1, CHUNK_BYTES // tensor.format.nbytes)
        for start in range(0, len(blocks), step):
            chunk = blocks[start : start + step]
            yield tensor.format.byteswap(chunk) if self._order == ">" else chunk
