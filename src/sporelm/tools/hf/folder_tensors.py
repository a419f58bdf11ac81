"""The tensors of a Hugging Face folder as the tools take them: described now, read when they are written."""

from threading import Lock

import numpy as np

from sporelm.errors import UnsupportedModel
from sporelm.quant import F32, FORMATS, QuantFormat, format_of
from sporelm.tools.lazy import Blocks, FilePart, LazyTensor
from sporelm.weights.messages import shown
from sporelm.weights.quantized.folder import QuantizedFolder
from sporelm.weights.safetensors import SafetensorInfo, SafetensorsFiles
from sporelm.weights.stored import StoredTensor


class FolderTensors:
    """Lazy tensors of an open folder. They can be read after it is closed, but for weights that are put together."""

    def __init__(self, files: SafetensorsFiles | QuantizedFolder) -> None:
        self.files = files
        self._parts = [FilePart(path) for path in files.paths]
        self._kept: StoredTensor | None = None  # the weight put together last
        self._lock = Lock()

    def tensor(self, name: str) -> LazyTensor:
        """A tensor under its own name. Raises UnsupportedModel for a dtype that nothing can compute with."""
        info = self.files.tensors[name]
        found = format_of(info.type_name)
        if info.part < 0:
            return self._assembled(info, found)
        if found.name not in FORMATS:
            raise UnsupportedModel(
                f"{self.files.path}: tensor {shown(name)} {list(info.shape)} of {info.type_name} has no place in a GGUF"
                " file; save it as F32, F16 or BF16"
            )
        part = self._parts[info.part]

        def read(start: int, stop: int) -> Blocks:
            nbytes = found.nbytes
            return part.read(info.offset + start * nbytes, (stop - start) * nbytes).reshape(-1, nbytes)

        return LazyTensor(name, found.ggml_id, info.shape, read)

    def _assembled(self, info: SafetensorInfo, found: type[QuantFormat]) -> LazyTensor:
        """A quantized weight that is made of several tensors: one at a time is in memory. In its own format where that
        is a type of GGUF and its columns are in place, else as its values in F32."""
        assert isinstance(self.files, QuantizedFolder)
        is_ggml = found.name in FORMATS and self.files.in_place(info.name)

        def whole() -> StoredTensor:
            with self._lock:
                if self._kept is None or self._kept.name != info.name:
                    self._kept = None  # before the next is made
                    self._kept = self.files.tensor(info.name)
                return self._kept

        def read(start: int, stop: int) -> Blocks:
            if is_ggml:
                return whole().blocks.reshape(-1, found.nbytes)[start:stop]
            width = info.shape[-1]
            low, high = start // width, -(-stop // width)
            values = whole().rows(low, high).dequantize().reshape(-1)
            return values[start - low * width : stop - low * width].view(np.uint8).reshape(-1, 4)

        return LazyTensor(info.name, found.ggml_id if is_ggml else F32.ggml_id, info.shape, read, work=not is_ggml)
