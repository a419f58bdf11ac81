"""Lazy tensors of a Hugging Face folder: described now, read when they are written."""

from threading import Lock

import numpy as np

from sporelm.checkpoints.quantized.folder import QuantizedFolder
from sporelm.errors import UnsupportedModel
from sporelm.files.safetensors import SafetensorInfo, SafetensorsFiles
from sporelm.files.tensor_messages import quote
from sporelm.quant import F32, FORMATS, QuantFormat, format_of
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tools.lazy_model import Blocks, LazyTensor, UnmappedFile


class FolderTensors:
    """Lazy tensors of an open folder. After it is closed they can be read, except weights assembled from parts."""

    def __init__(self, files: SafetensorsFiles | QuantizedFolder) -> None:
        self.files = files
        self._parts = [UnmappedFile(path) for path in files.paths]
        self._cached: StoredTensor | None = None  # the weight assembled last
        self._lock = Lock()

    def tensor(self, name: str) -> LazyTensor:
        """Return a tensor under its own name. Raises UnsupportedModel for a dtype that GGUF does not have."""
        info = self.files.tensors[name]
        number_format = format_of(info.type_name)
        if info.file_index < 0:
            return self._assemble(info, number_format)
        if number_format.name not in FORMATS:
            raise UnsupportedModel(
                f"{self.files.path}: tensor {quote(name)} {list(info.shape)} of {info.type_name} has no place in a GGUF"
                " file; save it as F32, F16 or BF16"
            )
        part = self._parts[info.file_index]

        def read(start: int, stop: int) -> Blocks:
            nbytes = number_format.nbytes
            return part.read(info.offset + start * nbytes, (stop - start) * nbytes).reshape(-1, nbytes)

        return LazyTensor(name, number_format.ggml_id, info.shape, read)

    def _assemble(self, info: SafetensorInfo, number_format: type[QuantFormat]) -> LazyTensor:
        """Return a weight that is assembled from several tensors; one such weight is in memory at a time.

        It keeps its format if that is a GGUF type and its columns are in order; else its values are F32.
        """
        assert isinstance(self.files, QuantizedFolder)
        is_ggml = number_format.name in FORMATS and self.files.has_columns_in_place(info.name)

        def assemble() -> StoredTensor:
            with self._lock:
                if self._cached is None or self._cached.name != info.name:
                    self._cached = None  # freed before the next one is made
                    self._cached = self.files.tensor(info.name)
                return self._cached

        def read(start: int, stop: int) -> Blocks:
            if is_ggml:
                return assemble().blocks.reshape(-1, number_format.nbytes)[start:stop]
            width = info.shape[-1]
            low = start // width
            high = -(-stop // width)
            values = assemble().rows(low, high).dequantize().reshape(-1)
            return values[start - low * width : stop - low * width].view(np.uint8).reshape(-1, 4)

        return LazyTensor(
            info.name, number_format.ggml_id if is_ggml else F32.ggml_id, info.shape, read, is_computed=not is_ggml
        )
