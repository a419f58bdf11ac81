"""A folder of quantized weights, presented as one tensor for each weight."""

from collections.abc import Mapping
from types import MappingProxyType

from sporelm.backends.memory_residency import drop_pages
from sporelm.checkpoints.quantized.assembled_weight import AssembledWeight, Scheme
from sporelm.checkpoints.quantized.groups import count_notes
from sporelm.errors import ModelFileError
from sporelm.files.memory_map import Closing
from sporelm.files.safetensors import SafetensorInfo, SafetensorsFiles
from sporelm.files.tensor_messages import no_such_tensor, quote
from sporelm.quant.stored_tensor import StoredTensor


class QuantizedFolder(Closing):
    """Safetensors files whose quantized weights are assembled on access; the others are views.

    tensors    name -> SafetensorInfo; of an assembled weight, its number format, shape and bytes
    notes      differences from the folder, one line each
    """

    def __init__(self, files: SafetensorsFiles, scheme: Scheme) -> None:
        self.files, self.path, self.paths, self.metadata = files, files.path, files.paths, files.metadata
        self._weights: dict[str, AssembledWeight] = {}
        tensors = dict(files.tensors)
        notes: list[str] = []
        reasons: list[str] = []
        for weight in scheme.weights():
            for part in weight.parts:
                if tensors.pop(part, None) is None:
                    raise ModelFileError(f"{self.path}: {quote(part)} is a part of two weights")
            if weight.name in tensors:
                raise ModelFileError(f"{self.path} holds {quote(weight.name)} twice: plain and quantized")
            self._weights[weight.name] = weight
            notes.append(weight.note)
        for name, reason in scheme.find_unused():
            if tensors.pop(name, None) is not None:
                reasons.append(reason)
        for name, weight in self._weights.items():
            tensors[name] = SafetensorInfo(name, weight.format.name, weight.shape, 0, weight.nbytes, -1)
        self.tensors: Mapping[str, SafetensorInfo] = MappingProxyType(tensors)
        self.notes = (*count_notes(notes, "weight"), *count_notes(reasons, "tensor"))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(self.tensors)

    def tensor(self, name: str) -> StoredTensor:
        """Return one tensor: assembled, or a view of the file. Raises ModelFileError for an unknown name."""
        weight = self._weights.get(name)
        if weight is None:
            if name not in self.tensors:
                raise no_such_tensor(self.path, name, self.tensors)
            return self.files.tensor(name)
        blocks = weight.blocks()
        for part in weight.parts:
            drop_pages(self.files.raw(part))
        return StoredTensor(name, weight.format, weight.shape, blocks, weight.order)

    def has_columns_in_place(self, name: str) -> bool:
        """Return whether a tensor's blocks have their columns in order; act-order weights have not."""
        weight = self._weights.get(name)
        return weight is None or weight.order is None

    def close(self) -> None:
        self.files.close()
