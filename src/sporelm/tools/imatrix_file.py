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
from sporelm.weights.gguf import GgufFile, GgufWriter, open_gguf
from sporelm.weights.gguf.beside import Job, write_beside
from sporelm.weights.gguf.limits import MAGIC
from sporelm.weights.mapped import map_file
from sporelm.weights.messages import shown

SUMS, COUNTS = ".in_sum2", ".counts"
DATASETS, CHUNK_COUNT, CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
USUAL_CHUNK = 512  # tokens; the older form does not say it
LONGEST_NAME = 1024
MOST_CALLS = (1 << 31) - 1
LARGEST_COUNT = float(1 << 53)
_INT = Struct("<i")


@dataclass(frozen=True, eq=False)
class Gathered:
    """Of one weight: sums of squares, float32 [matrices, width], and rows summed, int64 [matrices].

    An expert's matrix in a stack has a count of its own; a weight that every row meets has one count, and then its
    `width` is that of all its matrices together.
    """

    sums: NDArray[np.float32]
    counts: NDArray[np.int64]

    @property
    def unseen(self) -> int:
        """How many matrices met no row at all."""
        return int((self.counts == 0).sum())


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix.

    entries     weight's name in GGUF files -> what was gathered
    datasets    where the text came from
    chunks      how many windows of text, of `chunk_size` tokens each
    is_legacy   whether it was read from the older form: sums are means times counts, and counts numbers of calls
    """

    entries: Mapping[str, Gathered]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = USUAL_CHUNK
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
                f"{self.path or 'the importance matrix'} has {found.sums.size} values for tensor {shown(name)}, which"
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
        with np.errstate(over="ignore", invalid="ignore"):  # `merge` refuses what comes of it
            entries = {
                name: Gathered(found.sums * np.float32(size), found.counts * size)
                for name, found in self.entries.items()
            }
        return replace(self, entries=entries, is_legacy=False)


def merge(parts: Sequence[Imatrix]) -> Imatrix:
    """Importance matrices of several texts as one: sums and counts are added. Raises RequestError where they differ in
    size, and for none at all; ModelFileError for sums that float32 cannot hold."""
    if not parts:
        raise RequestError("there is nothing to merge: give at least one importance matrix")
    entries: dict[str, Gathered] = {}
    for part in parts:
        for name, found in part.raw().entries.items():
            before = entries.get(name)
            entries[name] = found if before is None else _added(name, before, found)
            if not np.isfinite(entries[name].sums).all():
                raise ModelFileError(f"{part.path}: the sums for {shown(name)} are not finite; the file is damaged")
    size = next((part.chunk_size for part in parts if not part.is_legacy), parts[0].chunk_size)
    most = max((int(found.counts.max(initial=0)) for found in entries.values()), default=0)
    datasets = tuple(dataset for part in parts for dataset in part.datasets)
    return Imatrix(entries, datasets, most // size, size)


def _added(name: str, left: Gathered, right: Gathered) -> Gathered:
    count = max(len(left.counts), len(right.counts))
    if left.sums.size != right.sums.size or min(len(left.counts), len(right.counts)) not in (1, count):
        raise RequestError(
            f"the importance matrices have {left.sums.size} and {right.sums.size} values for {shown(name)}, counted in"
            f" {len(left.counts)} and {len(right.counts)} parts: they are of different models"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        sums = (left.sums.reshape(-1) + right.sums.reshape(-1)).reshape(count, -1)
    return Gathered(sums, left.counts + right.counts)


def unicode_name(path: Path | str) -> str:
    """A path as files can hold it: bytes of it that are no UTF-8 are escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def read_imatrix(path: Path) -> Imatrix:
    """An importance matrix in either form. Raises ModelNotFound, ModelFileError for a file that is none or damaged."""
    data = map_file(path)
    if bytes(data[:4]) == MAGIC:
        with open_gguf(path) as file:
            found = _from_gguf(file)
    else:
        found = _from_dat(data, path)
    for name, gathered in found.entries.items():
        if not np.isfinite(gathered.sums).all() or (gathered.sums < 0).any():
            raise ModelFileError(f"{path}: the sums for {shown(name)} must be finite and not negative")
    return replace(found, path=path)


def _from_gguf(file: GgufFile) -> Imatrix:
    entries = {}
    for name in file.names:
        stem = name.removesuffix(SUMS)
        if stem == name:
            if not name.endswith(COUNTS) or name.removesuffix(COUNTS) + SUMS not in file.tensors:
                raise ModelFileError(
                    f"{file.path} is no importance matrix: it has a tensor {shown(name)}; make one with"
                    " 'spore gguf imatrix'"
                )
            continue
        if stem + COUNTS not in file.tensors:
            raise ModelFileError(f"{file.path}: the counts for {shown(stem)} are missing")
        sums, counts = (_floats(file, stem + part) for part in (SUMS, COUNTS))
        if not len(counts) or len(sums) % len(counts) or not (0 <= counts.min() <= counts.max() <= LARGEST_COUNT):
            raise ModelFileError(f"{file.path}: the counts for {shown(stem)} do not fit its {len(sums)} sums")
        entries[stem] = Gathered(sums.reshape(len(counts), -1), np.floor(counts + 0.5).astype(np.int64))
    if not entries:
        raise ModelFileError(f"{file.path} is no importance matrix: it holds no sums")
    names = file.metadata.get(DATASETS, ())
    datasets = tuple(names) if file.kinds.get(DATASETS) == "[str]" else ()
    chunks, size = _number(file, CHUNK_COUNT, 0), _number(file, CHUNK_SIZE, USUAL_CHUNK)
    return Imatrix(entries, datasets, chunks, max(1, size))


def _floats(file: GgufFile, name: str) -> NDArray[np.float32]:
    tensor = file.tensor(name)
    if tensor.format.name != "F32":
        raise ModelFileError(f"{file.path}: {shown(name)} must be F32, it is {tensor.format.name}")
    return tensor.dequantize().reshape(-1).copy()  # looks at no file, which may be written anew


def _number(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelFileError(f"{file.path}: {key} must be a whole number")
    return value


class _Reader:
    """Takes numbers and bytes from a ".dat", one after the other. Raises ModelFileError at its end."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self.data, self.path, self.place = data, path, 0

    @property
    def left(self) -> int:
        return len(self.data) - self.place

    def take(self, nbytes: int) -> memoryview:
        if not 0 <= nbytes <= self.left:
            raise ModelFileError(
                f"{self.path} is no importance matrix, or is damaged: {nbytes} bytes are wanted at byte {self.place},"
                f" {self.left} are left"
            )
        self.place += nbytes
        return self.data[self.place - nbytes : self.place]

    def whole(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def text(self) -> str:
        length = self.whole()
        if not 0 <= length <= LONGEST_NAME:
            raise ModelFileError(f"{self.path} is no importance matrix: a name of {length} bytes")
        try:
            return bytes(self.take(length)).decode()
        except UnicodeDecodeError:
            raise ModelFileError(f"{self.path} is no importance matrix: a name is not UTF-8") from None


def _from_dat(data: memoryview, path: Path) -> Imatrix:
    reader, entries = _Reader(data, path), {}
    count = reader.whole()
    if not 1 <= count <= reader.left // 16:  # a name, two numbers and a value at least
        raise ModelFileError(f"{path} is no importance matrix: it begins with a count of {count} entries")
    for _ in range(count):
        name, calls, size = reader.text(), reader.whole(), reader.whole()
        if size < 1 or calls < 0:
            raise ModelFileError(f"{path}: {size} values of {calls} calls for {shown(name)}")
        sums = np.frombuffer(reader.take(4 * size), "<f4").astype(np.float32)
        entries[name] = Gathered(sums.reshape(1, -1), np.array([calls], np.int64))
    chunks = max(0, reader.whole()) if reader.left else 0
    datasets = (reader.text(),) if reader.left else ()
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
    for name, found in in_name_order(whole):
        # One matrix has the shapes that ggml leaves of [1, width] and [1, 1].
        is_one = len(found.counts) == 1
        writer.add_tensor(name + SUMS, found.sums[0] if is_one else found.sums)
        counts = found.counts.astype(np.float32)
        writer.add_tensor(name + COUNTS, counts if is_one else counts[:, None])
    writer.write()


def in_name_order(imatrix: Imatrix) -> list[tuple[str, Gathered]]:
    """The entries by name, as both forms have them."""
    return sorted(imatrix.entries.items(), key=lambda item: item[0].encode())


def _write_dat(file: BinaryIO, imatrix: Imatrix) -> None:
    """Entries without any rows are left out; an expert without is written as ones.

    Raises RequestError for counts that the older form cannot tell.
    """
    kept = [(name, found) for name, found in in_name_order(imatrix) if found.unseen < len(found.counts)]
    file.write(_INT.pack(len(kept)))
    for name, found in kept:
        calls = _counted(-(-int(found.counts.max()) // imatrix.chunk_size))
        counts = found.counts.astype(np.float32)[:, None]
        means = np.where(counts > 0, found.sums / np.maximum(counts, np.float32(1)), np.float32(1))
        file.write(_INT.pack(len(name.encode())) + name.encode() + _INT.pack(calls) + _INT.pack(means.size))
        with np.errstate(over="ignore"):
            file.write((means * np.float32(calls)).astype("<f4").tobytes())
    dataset = (imatrix.datasets[-1] if imatrix.datasets else "").encode()
    file.write(_INT.pack(_counted(imatrix.chunks)) + _INT.pack(len(dataset)) + dataset)


def _counted(count: int) -> int:
    """A count that the older form can tell: 32 bits, one for the sign."""
    if count > MOST_CALLS:
        raise RequestError(f"the older form counts up to {MOST_CALLS}, here are {count}: write .gguf instead")
    return count
