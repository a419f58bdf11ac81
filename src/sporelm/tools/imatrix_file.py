"""Importance matrices as files: for each weight, the sums of squares of what it was multiplied with, column by column.

Two forms, both llama.cpp's (tools/imatrix, common/imatrix-loader.cpp): GGUF files with the tensors NAME.in_sum2
[matrices, width] and NAME.counts [matrices, 1], the number of rows summed; and the older ".dat": little-endian int32
and float32, with sums that are already divided by the count and multiplied by a number of calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelFileError, RequestError
from sporelm.files.atomic_write import Job, write_beside
from sporelm.files.gguf import GgufFile, GgufWriter, open_gguf
from sporelm.files.gguf.gguf_limits import MAGIC
from sporelm.files.memory_map import map_file
from sporelm.files.tensor_messages import quote

SUMS = ".in_sum2"
COUNTS = ".counts"
DATASETS = "imatrix.datasets"
CHUNK_COUNT = "imatrix.chunk_count"
CHUNK_SIZE = "imatrix.chunk_size"
DEFAULT_CHUNK_SIZE = 512  # tokens; the older form does not say it
MAX_NAME_BYTES = 1024
MAX_CALLS = (1 << 31) - 1
MAX_COUNT = float(1 << 53)
_INT = Struct("<i")


@dataclass(frozen=True, eq=False)
class ImatrixEntry:
    """Of one weight: sums of squares, float32 [matrices, width], and rows summed, int64 [matrices].

    An expert's matrix in a stack has a count of its own; a weight that every row meets has one count, and then its
    `width` is that of all its matrices together.
    """

    sums: NDArray[np.float32]
    counts: NDArray[np.int64]

    @property
    def num_unseen(self) -> int:
        """Number of matrices that received no row."""
        return int((self.counts == 0).sum())


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix.

    entries     weight's name in GGUF files -> what was gathered
    datasets    where the text came from
    chunks      how many windows of text, of `chunk_size` tokens each
    is_legacy   whether it was read from the older form: sums are means times counts, and counts numbers of calls
    """

    entries: Mapping[str, ImatrixEntry]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = DEFAULT_CHUNK_SIZE
    is_legacy: bool = False
    path: Path | None = field(default=None, compare=False)

    def importance(self, name: str, shape: Sequence[int]) -> NDArray[np.float32] | None:
        """Mean square of what each column of a weight met: float32 [width], or [experts, width] for a stack.

        An expert that met no row counts all columns alike. None if nothing was gathered for this weight. Raises
        RequestError if the numbers do not fit its logical shape.
        """
        found = self.entries.get(name)
        if found is None:
            return None
        matrices = shape[-3] if len(shape) > 2 else 1
        if found.sums.size != matrices * shape[-1]:
            raise RequestError(
                f"{self.path or 'the importance matrix'} has {found.sums.size} values for tensor {quote(name)}, which"
                f" has {matrices} x {shape[-1]} columns: it was made for another model"
            )
        counts = found.counts.astype(np.float32)[:, None]
        means = (found.sums / np.maximum(counts, np.float32(1))).astype(np.float32, copy=False)
        if not self.is_legacy:
            means[found.counts == 0] = 1
        means = means.reshape(matrices, shape[-1])
        return means if len(shape) > 2 else means[0]

    def raw(self) -> "Imatrix":
        """The same with true sums and counts; those of the older form are as if every call had been a whole chunk."""
        if not self.is_legacy:
            return self
        size = self.chunk_size
        with np.errstate(over="ignore", invalid="ignore"):  # `merge_imatrices` refuses what comes of it
            entries = {
                name: ImatrixEntry(found.sums * np.float32(size), found.counts * size)
                for name, found in self.entries.items()
            }
        return replace(self, entries=entries, is_legacy=False)


def merge_imatrices(parts: Sequence[Imatrix]) -> Imatrix:
    """Importance matrices of several texts as one: sums and counts are added. Raises RequestError where they differ in
    size, and for none at all; ModelFileError for sums that float32 cannot hold."""
    if not parts:
        raise RequestError("there is nothing to merge: give at least one importance matrix")
    entries: dict[str, ImatrixEntry] = {}
    for part in parts:
        for name, found in part.raw().entries.items():
            before = entries.get(name)
            entries[name] = found if before is None else _add_entries(name, before, found)
            if not np.isfinite(entries[name].sums).all():
                raise ModelFileError(f"{part.path}: the sums for {quote(name)} are not finite; the file is damaged")
    size = next((part.chunk_size for part in parts if not part.is_legacy), parts[0].chunk_size)
    most = max((int(found.counts.max(initial=0)) for found in entries.values()), default=0)
    datasets = tuple(dataset for part in parts for dataset in part.datasets)
    return Imatrix(entries, datasets, most // size, size)


def _add_entries(name: str, left: ImatrixEntry, right: ImatrixEntry) -> ImatrixEntry:
    count = max(len(left.counts), len(right.counts))
    if left.sums.size != right.sums.size or min(len(left.counts), len(right.counts)) not in (1, count):
        raise RequestError(
            f"the importance matrices have {left.sums.size} and {right.sums.size} values for {quote(name)}, counted in"
            f" {len(left.counts)} and {len(right.counts)} parts: they are of different models"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        sums = (left.sums.reshape(-1) + right.sums.reshape(-1)).reshape(count, -1)
    return ImatrixEntry(sums, left.counts + right.counts)


def escape_path(path: Path | str) -> str:
    """A path as files can hold it: bytes that are not UTF-8 are escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def read_imatrix(path: Path) -> Imatrix:
    """An importance matrix in either form. Raises ModelNotFound, ModelFileError for another or a damaged file."""
    data = map_file(path)
    if bytes(data[:4]) == MAGIC:
        with open_gguf(path) as file:
            found = _read_gguf(file)
    else:
        found = _read_dat(data, path)
    for name, gathered in found.entries.items():
        if not np.isfinite(gathered.sums).all() or (gathered.sums < 0).any():
            raise ModelFileError(f"{path}: the sums for {quote(name)} must be finite and not negative")
    return replace(found, path=path)


def _read_gguf(file: GgufFile) -> Imatrix:
    entries = {}
    for name in file.names:
        stem = name.removesuffix(SUMS)
        if stem == name:
            if not name.endswith(COUNTS) or name.removesuffix(COUNTS) + SUMS not in file.tensors:
                raise ModelFileError(
                    f"{file.path} is not an importance matrix: it has a tensor {quote(name)}; make one with"
                    " 'spore gguf imatrix'"
                )
            continue
        if stem + COUNTS not in file.tensors:
            raise ModelFileError(f"{file.path}: the counts for {quote(stem)} are missing")
        sums, counts = (_read_floats(file, stem + part) for part in (SUMS, COUNTS))
        if not len(counts) or len(sums) % len(counts) or not (0 <= counts.min() <= counts.max() <= MAX_COUNT):
            raise ModelFileError(f"{file.path}: the counts for {quote(stem)} do not fit its {len(sums)} sums")
        entries[stem] = ImatrixEntry(sums.reshape(len(counts), -1), np.floor(counts + 0.5).astype(np.int64))
    if not entries:
        raise ModelFileError(f"{file.path} is not an importance matrix: it holds no sums")
    names = file.metadata.get(DATASETS, ())
    datasets = tuple(names) if file.kinds.get(DATASETS) == "[str]" else ()
    chunks = _read_number(file, CHUNK_COUNT, 0)
    size = _read_number(file, CHUNK_SIZE, DEFAULT_CHUNK_SIZE)
    return Imatrix(entries, datasets, chunks, max(1, size))


def _read_floats(file: GgufFile, name: str) -> NDArray[np.float32]:
    tensor = file.tensor(name)
    if tensor.format.name != "F32":
        raise ModelFileError(f"{file.path}: {quote(name)} must be F32, it is {tensor.format.name}")
    return tensor.dequantize().reshape(-1).copy()  # a copy, because the file may be rewritten


def _read_number(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelFileError(f"{file.path}: {key} must be a whole number")
    return value


class _DatReader:
    """Reads numbers and bytes from a ".dat" in sequence. Raises ModelFileError at its end."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = 0

    @property
    def num_remaining(self) -> int:
        return len(self.data) - self.position

    def read_bytes(self, nbytes: int) -> memoryview:
        if not 0 <= nbytes <= self.num_remaining:
            raise ModelFileError(
                f"{self.path} is not an importance matrix, or is damaged: {nbytes} bytes are needed at byte"
                f" {self.position}, {self.num_remaining} remain"
            )
        self.position += nbytes
        return self.data[self.position - nbytes : self.position]

    def read_int(self) -> int:
        return int(_INT.unpack(self.read_bytes(4))[0])

    def read_text(self) -> str:
        length = self.read_int()
        if not 0 <= length <= MAX_NAME_BYTES:
            raise ModelFileError(f"{self.path} is not an importance matrix: a name of {length} bytes")
        try:
            return bytes(self.read_bytes(length)).decode()
        except UnicodeDecodeError:
            raise ModelFileError(f"{self.path} is not an importance matrix: a name is not UTF-8") from None


def _read_dat(data: memoryview, path: Path) -> Imatrix:
    reader = _DatReader(data, path)
    entries = {}
    count = reader.read_int()
    if not 1 <= count <= reader.num_remaining // 16:  # a name, two numbers and a value at least
        raise ModelFileError(f"{path} is not an importance matrix: it begins with a count of {count} entries")
    for _ in range(count):
        name = reader.read_text()
        calls = reader.read_int()
        size = reader.read_int()
        if size < 1 or calls < 0:
            raise ModelFileError(f"{path}: {size} values of {calls} calls for {quote(name)}")
        sums = np.frombuffer(reader.read_bytes(4 * size), "<f4").astype(np.float32)
        entries[name] = ImatrixEntry(sums.reshape(1, -1), np.array([calls], np.int64))
    chunks = max(0, reader.read_int()) if reader.num_remaining else 0
    datasets = (reader.read_text(),) if reader.num_remaining else ()
    return Imatrix(entries, tuple(name for name in datasets if name), chunks, is_legacy=True)


def write_imatrix(path: Path, imatrix: Imatrix, *, form: str | None = None) -> None:
    """Write it whole, beside its place and then renamed. `form` is "gguf" or "dat"; None: as the name ends.

    Raises RequestError if the file cannot be written or there is nothing to write.
    """
    whole = imatrix.raw()
    if not whole.entries:
        raise RequestError(f"{path}: nothing was gathered, so there is nothing to write")
    chosen = form or ("dat" if path.suffix.lower() == ".dat" else "gguf")
    if chosen == "dat":
        write_beside([Job(path, lambda file: _write_dat(file, whole))])
        return
    writer = GgufWriter(path)
    header: tuple[tuple[str, Any, str], ...] = (
        ("general.type", "imatrix", "str"),
        (DATASETS, list(whole.datasets), "[str]"),
        (CHUNK_COUNT, whole.chunks, "u32"),
        (CHUNK_SIZE, whole.chunk_size, "u32"),
    )
    for key, value, kind in header:
        writer.add(key, value, kind)
    for name, found in sort_entries(whole):
        # One matrix has the shapes that ggml leaves of [1, width] and [1, 1].
        is_one = len(found.counts) == 1
        writer.add_tensor(name + SUMS, found.sums[0] if is_one else found.sums)
        counts = found.counts.astype(np.float32)
        writer.add_tensor(name + COUNTS, counts if is_one else counts[:, None])
    writer.write()


def sort_entries(imatrix: Imatrix) -> list[tuple[str, ImatrixEntry]]:
    """The entries by name, as both forms have them."""
    return sorted(imatrix.entries.items(), key=lambda item: item[0].encode())


def _write_dat(file: BinaryIO, imatrix: Imatrix) -> None:
    """Entries without any rows are left out; an expert without is written as ones.

    Raises RequestError for counts that the older form cannot tell.
    """
    kept = [(name, found) for name, found in sort_entries(imatrix) if found.num_unseen < len(found.counts)]
    file.write(_INT.pack(len(kept)))
    for name, found in kept:
        calls = _check_count(-(-int(found.counts.max()) // imatrix.chunk_size))
        counts = found.counts.astype(np.float32)[:, None]
        means = np.where(counts > 0, found.sums / np.maximum(counts, np.float32(1)), np.float32(1))
        file.write(_INT.pack(len(name.encode())) + name.encode() + _INT.pack(calls) + _INT.pack(means.size))
        with np.errstate(over="ignore"):
            file.write((means * np.float32(calls)).astype("<f4").tobytes())
    dataset = (imatrix.datasets[-1] if imatrix.datasets else "").encode()
    file.write(_INT.pack(_check_count(imatrix.chunks)) + _INT.pack(len(dataset)) + dataset)


def _check_count(count: int) -> int:
    """A count that the older form can tell: 32 bits, one for the sign."""
    if count > MAX_CALLS:
        raise RequestError(f"the older form counts up to {MAX_CALLS}, here are {count}: write .gguf instead")
    return count
