"""Safetensors files, one alone or a folder of shards.

Source: the format's specification in the safetensors repository. A file is an u64 header length, a JSON header
{name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {str: str}}, and the data, all little-endian.
The header is a claim and is checked as one, like everything the index of a sharded folder says.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import prod
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from sporelm.files.memory_map import Closing, byte_array, map_file
from sporelm.files.tensor_messages import no_such_tensor, quote
from sporelm.quant import FOLDER_FORMATS, FORMATS, format_of
from sporelm.quant.stored_tensor import StoredTensor

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the reference reader's own limit
MAX_RANK = 16

# Bits per value of every dtype the format knows.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class SafetensorInfo(NamedTuple):
    """The header's entry of one tensor: its file, counted from 0, and its place there, in bytes from the start."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file_index: int = 0


class SafetensorsFiles(Closing):
    """An open model: one safetensors file, or all shards of a folder.

    path       what was opened; `paths` are the files
    metadata   the `__metadata__` of the first file, str -> str
    tensors    name -> SafetensorInfo

    Tensors already taken stay valid after `close`.
    """

    def __init__(
        self, path: Path, paths: list[Path], data: list[memoryview], metadata: dict[str, str],
        tensors: dict[str, SafetensorInfo],
    ) -> None:  # fmt: skip
        self.path, self.paths = path, tuple(paths)
        self.metadata: Mapping[str, str] = MappingProxyType(metadata)
        self.tensors: Mapping[str, SafetensorInfo] = MappingProxyType(tensors)
        self._data: list[memoryview] | None = data

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(self.tensors)

    def tensor(self, name: str) -> StoredTensor:
        """One tensor, as a view of the file.

        Raises ModelFileError if there is none of that name, UnsupportedModel for a dtype we do not compute with.
        """
        blocks = self.raw(name)
        info = self.tensors[name]
        if info.type_name not in (FORMATS | FOLDER_FORMATS):
            usable = ", ".join(name for name in FORMATS | FOLDER_FORMATS if name in DTYPE_BITS)
            raise UnsupportedModel(
                f"{self.path}: tensor {quote(name)} has dtype {info.type_name}, not supported; supported: {usable}"
            )
        return StoredTensor(name, format_of(info.type_name), info.shape, blocks)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, uint8 [nbytes], a view, whatever its dtype. Raises ModelFileError if there is none."""
        if self._data is None:
            raise ModelFileError(f"{self.path} was closed; open it again to read {quote(name)}")
        info = self.tensors.get(name)
        if info is None:
            raise no_such_tensor(self.path, name, self.tensors)
        return byte_array(self._data[info.file_index], info.offset, info.nbytes)

    def close(self) -> None:
        """Let go of the files; each is unmapped when the last tensor that looks at it is gone."""
        self._data = None

    def __repr__(self) -> str:
        return f"SafetensorsFiles({str(self.path)!r}, {len(self.paths)} files, {len(self.tensors)} tensors)"


def joined(files: SafetensorsFiles, others: SafetensorsFiles, names: Mapping[str, str]) -> SafetensorsFiles:
    """The tensors of both, those of `others` under other names. Raises ModelFileError for one that `names` lacks, or a
    name that there is already."""
    assert files._data is not None
    assert others._data is not None
    tensors, start = dict(files.tensors), len(files.paths)
    for name, info in others.tensors.items():
        if name not in names or names[name] in tensors:
            known = ", ".join(names)
            raise ModelFileError(f"{others.path} holds {quote(name)}, which has no place there; {known} have")
        tensors[names[name]] = info._replace(name=names[name], file_index=start + info.file_index)
    paths, data = [*files.paths, *others.paths], [*files._data, *others._data]
    return SafetensorsFiles(files.path, paths, data, dict(files.metadata), tensors)


def with_blocks(
    files: SafetensorsFiles, replaced: Iterable[tuple[SafetensorInfo, NDArray[np.uint8]]]
) -> SafetensorsFiles:
    """The files with tensors whose bytes, uint8 of any shape, are in memory, in place of those of the same name."""
    assert files._data is not None
    tensors, paths, data = dict(files.tensors), list(files.paths), list(files._data)
    for info, blocks in replaced:
        tensors[info.name] = info._replace(offset=0, file_index=len(data))
        paths.append(files.paths[info.file_index])
        data.append(memoryview(blocks.tobytes()))
    return SafetensorsFiles(files.path, paths, data, dict(files.metadata), tensors)


def open_safetensors(path: str | PathLike[str]) -> SafetensorsFiles:
    """Open a .safetensors file, or the folder of a model: its index and shards, or its single file of any name.

    Headers are read and checked, data is mapped and not read. Raises ModelNotFound, and ModelFileError for files that
    are damaged or lie about themselves.
    """
    given = Path(path)
    index: dict[str, str] | None = None
    if given.is_dir():
        if (given / INDEX_NAME).exists():
            index = _read_index(given / INDEX_NAME)
            paths = [given / shard for shard in sorted(set(index.values()))]
        elif (given / SINGLE_NAME).exists():
            paths = [given / SINGLE_NAME]
        elif len(others := sorted(given.glob("*.safetensors"))) == 1:
            paths = others  # older tools name the file after the scheme, such as gptq_model-4bit-128g
        else:
            pickled = sorted(file.name for file in given.glob("pytorch_model*.bin"))
            remedy = "save_pretrained of transformers writes safetensors"
            hint = f"; {pickled[0]} may run any code when it is read, so it is not; {remedy}" if pickled else ""
            raise ModelNotFound(f"{given} holds neither {SINGLE_NAME} nor {INDEX_NAME}{hint}")
    else:
        paths = [given]
    data = [map_file(file) for file in paths]
    tensors: dict[str, SafetensorInfo] = {}
    metadata: dict[str, str] = {}
    for part, (file, mapped) in enumerate(zip(paths, data, strict=True)):
        found, own = _read_header(file, mapped, part)
        metadata = metadata or own
        for name, info in found.items():
            if name in tensors:
                raise ModelFileError(f"tensor {quote(name)} is both in {paths[tensors[name].file_index]} and in {file}")
            tensors[name] = info
    if index is not None:
        _check_index(given / INDEX_NAME, index, paths, tensors)
    return SafetensorsFiles(given, paths, data, metadata, tensors)


def _read_header(path: Path, data: memoryview, part: int) -> tuple[dict[str, SafetensorInfo], dict[str, str]]:
    size = len(data)
    if size < 8:
        raise ModelFileError(f"{path} has {size} bytes, too few for a safetensors header; it is truncated")
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES or length > size - 8:
        limit = min(MAX_HEADER_BYTES, size - 8)
        raise ModelFileError(
            f"{path}: header length is {length}, the limit here is {limit}; it is damaged or truncated"
        )
    header = _parse_json(path, bytes(data[8 : 8 + length]))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ModelFileError(f"{path}: __metadata__ must map strings to strings; the header is damaged")
    tensors = {name: _tensor_info(path, name, entry, 8 + length, size, part) for name, entry in header.items()}
    placed = sorted((info for info in tensors.values() if info.nbytes), key=lambda info: info.offset)
    for before, after in pairwise(placed):
        if before.offset + before.nbytes > after.offset:
            raise ModelFileError(
                f"{path}: tensors {quote(before.name)} and {quote(after.name)} overlap; the header is damaged"
            )
    return tensors, metadata


def _tensor_info(path: Path, name: str, entry: object, start: int, size: int, part: int) -> SafetensorInfo:
    """Check one entry of a header whose data begins at `start` in a file of `size` bytes."""
    what = f"{path}: tensor {quote(name)}"
    if not isinstance(entry, dict):
        raise ModelFileError(f"{what} is not described by an object; the header is damaged")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if not isinstance(dtype, str) or bits is None:
        raise ModelFileError(f"{what} has dtype {quote(str(dtype))}, which the format does not know; it is damaged")
    if not _is_counts(shape) or len(shape) > MAX_RANK:
        raise ModelFileError(f"{what}: shape must be a list of at most {MAX_RANK} whole numbers; the header is damaged")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelFileError(f"{what}: data_offsets must be two whole numbers in order; the header is damaged")
    begin, end = offsets
    if start + end > size:
        raise ModelFileError(f"{what} ends at byte {start + end}, the file at {size}; it is truncated or damaged")
    values = prod(shape)
    if values * bits != (end - begin) * 8:
        raise ModelFileError(
            f"{what}: {dtype} of {values} values is {values * bits} bits, data_offsets hold {(end - begin) * 8}"
        )
    return SafetensorInfo(name, dtype, tuple(shape), start + begin, end - begin, part)


def _is_counts(value: Any) -> TypeGuard[list[int]]:
    """Whether a JSON value is a list of whole numbers from 0 to 2^63 - 1 (a bool is none, though Python says so)."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _read_index(path: Path) -> dict[str, str]:
    """The weight map of a sharded folder: tensor -> file name."""
    data = map_file(path)
    if len(data) > MAX_HEADER_BYTES:
        raise ModelFileError(f"{path} has {len(data)} bytes, the limit is {MAX_HEADER_BYTES}")
    weight_map = _parse_json(path, bytes(data)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{path}: weight_map must map tensor names to file names; the index is damaged")
    for name, shard in weight_map.items():
        if not _is_plain_name(shard):
            raise ModelFileError(
                f"{path}: tensor {quote(name)} is said to be in {quote(str(shard))};"
                " a shard must be the plain name of a .safetensors file in the same folder"
            )
    return weight_map


def _is_plain_name(shard: object) -> bool:
    """Whether this names a file in the same folder on every system, and nothing else."""
    return (
        isinstance(shard, str)
        and shard.endswith(".safetensors")
        and len(shard) <= 255
        and not shard.startswith(".")
        and shard.isprintable()
        and not any(sign in shard for sign in '/\\:*?"<>|')
    )


def _check_index(path: Path, index: dict[str, str], paths: list[Path], tensors: dict[str, SafetensorInfo]) -> None:
    """Check that index and shards speak of the same tensors, each in the shard that the index says."""
    for name, shard in index.items():
        info = tensors.get(name)
        if info is None or paths[info.file_index].name != shard:
            raise ModelFileError(f"{path} says that {shard} holds tensor {quote(name)}, it does not")
    for name, info in tensors.items():
        if name not in index:
            raise ModelFileError(f"{paths[info.file_index]} holds tensor {quote(name)}, which {path} does not list")


def _parse_json(path: Path, text: bytes) -> dict[str, Any]:
    """A JSON object without duplicate keys, at any depth."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ModelFileError(f"{path}: key {quote(twice)} appears twice; the header is damaged")
        return result

    try:
        parsed = json.loads(text.decode(), object_pairs_hook=unique)
    except RecursionError:
        raise ModelFileError(f"{path}: the JSON is nested too deeply; the header is damaged") from None
    except ValueError as reason:  # bad UTF-8, bad JSON, numbers too long to convert
        raise ModelFileError(f"{path}: the header is not JSON: {str(reason)[:120]}") from None
    if not isinstance(parsed, dict):
        raise ModelFileError(f"{path}: the header must be a JSON object")
    return parsed
