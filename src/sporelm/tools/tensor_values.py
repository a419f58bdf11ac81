"""The values of a stored tensor, a bounded number at a time, whatever its type and byte order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import UnsupportedModel
from sporelm.files.tensor_messages import quote
from sporelm.quant import FOLDER_FORMATS, FORMATS, QuantFormat
from sporelm.quant.format import list_supported_formats
from sporelm.tools.model_files import ModelFiles

CHUNK_VALUES = 1 << 18  # values at a time: a few MiB of temporaries

# Types that numpy reads as they are; exact, where a number format would round to float32.
PLAIN = {
    "F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "u1",
}  # fmt: skip


class TensorValues:
    """The values of one tensor in row-major order, read when asked for.

    Raises UnsupportedModel for a type that cannot be computed with.
    """

    def __init__(self, source: ModelFiles, name: str) -> None:
        self.entry = source.tensors[name]
        self.size = self.entry.size
        self._raw = source.raw(name)
        self._is_big = source.is_big(self.entry.file_index)
        self._plain: np.dtype | None = None
        self._format: type[QuantFormat] | None = None
        if self.entry.type_name in PLAIN:
            self._plain = np.dtype((">" if self._is_big else "<") + PLAIN[self.entry.type_name])
        elif (found := (FORMATS | FOLDER_FORMATS).get(self.entry.type_name)) is not None:
            self._format = found
        else:
            raise UnsupportedModel(
                f"{source.path}: tensor {quote(name)} has type {self.entry.type_name}, whose values cannot be read;"
                f" supported: {list_supported_formats()}"
            )

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Values start to stop - 1: float32; float64 and integers of F64 and integer types."""
        if self._plain is not None:
            width = self._plain.itemsize
            values = self._raw[start * width : stop * width].view(self._plain)
            native = self._plain.newbyteorder("=")
            return values.astype(np.float32 if native.kind == "f" and width < 4 else native)
        assert self._format is not None
        per_block = self._format.values
        nbytes = self._format.nbytes
        first = start // per_block
        last = -(-stop // per_block)
        blocks = self._raw[first * nbytes : last * nbytes].reshape(-1, nbytes)
        blocks = self._format.byteswap(blocks) if self._is_big else np.ascontiguousarray(blocks)
        with np.errstate(all="ignore"):  # damaged scales become NaN or infinity, which is what is looked for
            values = self._format.dequantize(blocks).reshape(-1)
        return values[start - first * per_block : stop - first * per_block]

    def chunks(self) -> Iterator[NDArray[Any]]:
        """All values, in order, as several arrays."""
        for start in range(0, self.size, CHUNK_VALUES):
            yield self.read(start, min(start + CHUNK_VALUES, self.size))
