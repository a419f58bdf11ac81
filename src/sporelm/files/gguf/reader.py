"""Opening GGUF files."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelFileError
from sporelm.files.gguf.header import GgufTensorInfo, Header, read_header
from sporelm.files.gguf.splits import check_split, check_tensor_total, other_splits
from sporelm.files.memory_map import Closing, byte_array, map_file
from sporelm.files.tensor_messages import no_such_tensor, quote
from sporelm.quant import F32, format_of
from sporelm.quant.stored_tensor import StoredTensor

__all__ = ["GgufFile", "GgufTensorInfo", "open_gguf"]


class GgufFile(Closing):
    """An open model: one file, or all the files of a split model.

    path         the file that was opened; `paths` are all of them
    version      of the format, 2 or 3
    byte_order   "little" or "big"; `byte_orders` are those of all the files
    alignment    of the tensors' data, in bytes
    metadata     key -> int, float, bool, str, numpy array, StringArray, or a list of arrays
    kinds        key -> the type the value has in the file: "u32", "str", "[i32]", ...
    tensors      name -> GgufTensorInfo, in the order of the file
    has_data     False if a file ends after its header; then the tensors cannot be read

    The metadata of a split model is that of its first file. Tensors already taken stay valid after `close`.
    """

    def __init__(self, paths: list[Path], headers: list[Header], data: list[memoryview]) -> None:
        first = headers[0]
        self.path, self.paths = paths[0], tuple(paths)
        self.version, self.byte_order, self.alignment = first.version, first.byte_order, first.alignment
        self.metadata: Mapping[str, Any] = MappingProxyType(first.metadata)
        self.kinds: Mapping[str, str] = MappingProxyType(first.kinds)
        tensors: dict[str, GgufTensorInfo] = {}
        for part, header in enumerate(headers):
            for name, info in header.tensors.items():
                if name in tensors:
                    raise ModelFileError(
                        f"tensor {quote(name)} is both in {paths[tensors[name].file_index]} and in {paths[part]}"
                    )
                tensors[name] = info._replace(file_index=part)
        self.tensors: Mapping[str, GgufTensorInfo] = MappingProxyType(tensors)
        self.byte_orders = tuple(header.byte_order for header in headers)
        self.has_data = all(header.has_data for header in headers)
        self._data: list[memoryview] | None = data

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors, in the order of the file."""
        return tuple(self.tensors)

    def tensor(self, name: str) -> StoredTensor:
        """One tensor, as a view of the file; of a big-endian file, as a copy with the bytes in our order.

        Raises ModelFileError if there is none of that name.
        """
        blocks = self.raw(name)
        info = self.tensors[name]
        number_format = format_of(info.type_id)
        if self.byte_orders[info.file_index] == "big":
            blocks = number_format.byteswap(blocks.reshape(-1, number_format.nbytes))
        return StoredTensor(name, number_format, info.shape, blocks)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes as they lie in the file, uint8 [nbytes], a view. Raises ModelFileError if there is none."""
        if self._data is None:
            raise ModelFileError(f"{self.path} was closed; open it again to read {quote(name)}")
        info = self.tensors.get(name)
        if info is None:
            raise no_such_tensor(self.path, name, self.tensors)
        return byte_array(self._data[info.file_index], info.offset, info.nbytes)

    def add_tensor(self, name: str, values: NDArray[np.float32]) -> None:
        """Add a tensor of these numbers, which the file holds elsewhere. Changes `tensors`."""
        assert self._data is not None
        info = GgufTensorInfo(name, F32.name, F32.ggml_id, values.shape, 0, values.nbytes, len(self._data))
        self.tensors = MappingProxyType({**self.tensors, name: info})
        self._data.append(memoryview(values.tobytes()))
        self.byte_orders = (*self.byte_orders, "little")

    def close(self) -> None:
        """Let go of the files; each is unmapped when the last tensor or string array that looks at it is gone."""
        self._data = None

    def __repr__(self) -> str:
        return f"GgufFile({str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"


def open_gguf(path: str | PathLike[str], *, needs_data: bool = True) -> GgufFile:
    """Open a GGUF file, or a split model by its first file.

    The headers are read and checked, the tensors' data is mapped and not read. Without `needs_data`, files written
    with `--no-data` are opened too. Raises ModelNotFound, ModelFileError for a file that is damaged or lies about
    itself, UnsupportedModel for an unknown version or tensor type.
    """
    first = Path(path)
    paths, data = [first], [map_file(first)]
    headers = [read_header(data[0], first, needs_data=needs_data)]
    others = other_splits(first, headers[0])
    for number, other in enumerate(others, 1):
        mapped = map_file(other)
        header = read_header(mapped, other, needs_data=needs_data)
        check_split(other, header, number, len(others) + 1)
        paths.append(other)
        data.append(mapped)
        headers.append(header)
    if others:
        check_tensor_total(first, headers[0], sum(len(header.tensors) for header in headers))
    return GgufFile(paths, headers, data)
