"""The tensors of a quantized weight, read as arrays with checked types and shapes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelFileError
from sporelm.files.safetensors import SafetensorInfo, SafetensorsFiles
from sporelm.files.tensor_messages import quote
from sporelm.quant import BF16

Shape = Sequence[int | None]  # None: any length

# numpy's names of safetensors types; eight-bit floats, which numpy lacks, are read as bytes.
TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip
FLOATS = ("F32", "F16", "BF16", "F8_E8M0")


class Parts:
    """A folder's tensors by name."""

    def __init__(self, files: SafetensorsFiles) -> None:
        self.files = files
        self.where = str(files.path)

    def __contains__(self, name: str) -> bool:
        return name in self.files.tensors

    def info(self, name: str) -> SafetensorInfo:
        """Return the header entry of a part. Raises ModelFileError if it is missing."""
        found = self.files.tensors.get(name)
        if found is None:
            raise ModelFileError(f"{self.where} lacks {quote(name)}, a part of a quantized weight")
        return found

    def find_stems(self, suffix: str) -> list[str]:
        """Return the names with this suffix, without it, in the order of the files."""
        return [name.removesuffix(suffix) for name in self.files.tensors if name.endswith(suffix)]

    def read_array(self, name: str, types: str | Sequence[str], shape: Shape) -> NDArray[Any]:
        """Return a part as an array of one of these types and of this shape, not empty. Raises ModelFileError."""
        found, allowed = self.info(name), (types,) if isinstance(types, str) else types
        if found.type_name not in allowed:
            raise ModelFileError(f"{self.where}: {quote(name)} is {found.type_name}; it must be {' or '.join(allowed)}")
        self.check_shape(name, shape)
        if not all(found.shape):
            raise ModelFileError(
                f"{self.where}: {quote(name)} is {list(found.shape)}; a part of a weight must not be empty"
            )
        return self.files.raw(name).view(TYPES[found.type_name]).reshape(found.shape)

    def check_shape(self, name: str, shape: Shape) -> None:
        """Raise ModelFileError unless the part has this shape."""
        found = self.info(name).shape
        if len(found) != len(shape) or any(
            length not in (None, actual) for actual, length in zip(found, shape, strict=True)
        ):
            expected = "[" + ", ".join("any" if length is None else str(length) for length in shape) + "]"
            raise ModelFileError(
                f"{self.where}: {quote(name)} is {list(found)}; to fit the other parts it must be {expected}"
            )

    def read_floats(self, name: str, shape: Shape, rows: slice = slice(None)) -> NDArray[np.float32]:
        """Return a part of floats, or some of its rows, as float32."""
        found = self.read_array(name, FLOATS, shape)
        found = found[rows] if found.ndim else found
        kind = self.info(name).type_name
        if kind == "BF16":
            return BF16.dequantize(found.reshape(-1).view(np.uint8).reshape(-1, 2)).reshape(found.shape)
        if kind == "F8_E8M0":  # powers of two (OCP microscaling formats); 255 is NaN
            powers = np.ldexp(np.float32(1), found.astype(np.int32) - 127).astype(np.float32)
            return np.where(found == 255, np.float32("nan"), powers)
        return found.astype(np.float32)
