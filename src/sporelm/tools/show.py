"""The contents of a model file: header, metadata, tensors, and totals. Only the requested parts are decoded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sporelm.files.gguf import GgufFile, StringArray
from sporelm.files.json_object import read_object
from sporelm.tools.file_types import FILE_TYPES
from sporelm.tools.model_files import ModelFiles, TensorEntry, filter_names


class MetaEntry(NamedTuple):
    """One metadata value.

    value    number, bool, text, or for an array a list of its first elements
    length   number of elements of an array, else None
    note     what the number stands for, where that is known
    """

    key: str
    kind: str
    value: Any
    length: int | None = None
    note: str = ""


class TypeTotal(NamedTuple):
    """All tensors of one type together."""

    type_name: str
    tensors: int
    values: int
    nbytes: int


@dataclass(frozen=True)
class FileDescription:
    """The description of an open model. `metadata` and `tensors` are filtered; the totals cover everything."""

    path: Path
    kind: str
    paths: tuple[Path, ...]
    nbytes: int
    version: int | None
    byte_order: str
    alignment: int | None
    metadata_count: int
    tensor_count: int
    types: tuple[TypeTotal, ...]
    metadata: tuple[MetaEntry, ...]
    tensors: tuple[TensorEntry, ...]
    has_data: bool = True  # False for GGUF files that end after their header

    @property
    def parameters(self) -> int:
        """Number of values in all tensors."""
        return sum(row.values for row in self.types)

    @property
    def bits_per_weight(self) -> float | None:
        """Bits of all tensors' data per value; None without tensors."""
        return sum(row.nbytes for row in self.types) * 8 / self.parameters if self.parameters else None

    def as_json(self) -> dict[str, Any]:
        """The same as an object for `json.dumps`; numbers that JSON lacks become text."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "files": [str(path) for path in self.paths],
            "bytes": self.nbytes,
            "version": self.version,
            "byte_order": self.byte_order,
            "alignment": self.alignment,
            "has_data": self.has_data,
            "metadata_count": self.metadata_count,
            "tensor_count": self.tensor_count,
            "parameters": self.parameters,
            "bits_per_weight": self.bits_per_weight,
            "types": {
                row.type_name: {"tensors": row.tensors, "values": row.values, "bytes": row.nbytes} for row in self.types
            },
            "metadata": [
                {"key": entry.key, "kind": entry.kind, "value": to_jsonable(entry.value)}
                | ({} if entry.length is None else {"length": entry.length})
                | ({"note": entry.note} if entry.note else {})
                for entry in self.metadata
            ],
            "tensors": [
                {"name": entry.name, "type": entry.type_name, "shape": list(entry.shape), "offset": entry.offset,
                 "bytes": entry.nbytes, "file": entry.file_index}
                for entry in self.tensors
            ],
        }  # fmt: skip


def describe_files(
    source: ModelFiles,
    *,
    meta: Sequence[str] = (),
    tensors: Sequence[str] = (),
    detail: int | None = 8,
) -> FileDescription:
    """Describe an open model. `meta` and `tensors` are patterns as `filter_names` takes them, `detail` the number of
    elements decoded of each array (None: all). Raises ModelFileError for text that is not UTF-8, or a damaged
    config.json.
    """
    gguf = source.files if isinstance(source.files, GgufFile) else None
    entries = list_metadata(source, meta, detail)
    return FileDescription(
        path=source.path,
        kind=source.kind,
        paths=source.files.paths,
        nbytes=source.nbytes,
        version=gguf.version if gguf else None,
        byte_order=gguf.byte_order if gguf else "little",
        alignment=gguf.alignment if gguf else None,
        metadata_count=len(source.metadata),
        tensor_count=len(source.tensors),
        types=sum_by_type(source.tensors.values()),
        metadata=tuple(entries),
        tensors=tuple(source.tensors[name] for name in filter_names(source.tensors, tensors)),
        has_data=gguf is None or gguf.has_data,
    )


def sum_by_type(tensors: Iterable[TensorEntry]) -> tuple[TypeTotal, ...]:
    """The tensors by type, the type with most bytes first."""
    found: dict[str, TypeTotal] = {}
    for entry in tensors:
        row = found.get(entry.type_name, TypeTotal(entry.type_name, 0, 0, 0))
        found[entry.type_name] = TypeTotal(
            entry.type_name, row.tensors + 1, row.values + entry.size, row.nbytes + entry.nbytes
        )
    return tuple(sorted(found.values(), key=lambda row: (-row.nbytes, row.type_name)))


def list_metadata(source: ModelFiles, patterns: Sequence[str], detail: int | None) -> list[MetaEntry]:
    """The metadata that fits the patterns; of a Hugging Face folder also its configuration, as `config.KEY`."""
    found = []
    for key in filter_names(source.metadata, patterns):
        value, length = shorten(source.metadata[key], detail)
        found.append(MetaEntry(key, source.kinds[key], value, length, _describe_value(key, value)))
    config = {f"config.{key}": value for key, value in _read_config(source.path).items()}
    for key in filter_names(config, patterns):
        value, length = shorten(config[key], detail)
        found.append(MetaEntry(key, "json", value, length))
    return found


def shorten(value: Any, detail: int | None) -> tuple[Any, int | None]:
    """A value with at most `detail` elements at every depth, as numbers, text and lists; and an array's length."""
    if isinstance(value, StringArray):
        return value.decode_all() if detail is None else value.head(detail), len(value)
    if isinstance(value, np.ndarray):
        return value[:detail].tolist(), len(value)
    if isinstance(value, list):
        return [shorten(item, detail)[0] for item in value[:detail]], len(value)
    return value, None


def to_jsonable(value: Any) -> Any:
    """A value without the floats that JSON cannot write."""
    if isinstance(value, list):
        return [to_jsonable(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_jsonable(item) for key, item in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def _describe_value(key: str, value: Any) -> str:
    if key == "general.file_type" and isinstance(value, int):
        return FILE_TYPES.get(value & ~1024, "")  # the bit says that the type was guessed
    return ""


def _read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder; empty without one."""
    path = folder / "config.json"
    return read_object(path) if path.is_file() else {}
