"""A folder of quantized weights, seen as if each were one tensor."""

from collections.abc import Mapping
from types import MappingProxyType

from sporelm.backends.memory_residency import drop_pages
from sporelm.checkpoints.quantized.assembled import Assembled, Scheme
from sporelm.checkpoints.quantized.groups import repeated
from sporelm.errors import ModelFileError
from sporelm.files.memory_map import Closing
from sporelm.files.safetensors import SafetensorInfo, SafetensorsFiles
from sporelm.files.tensor_messages import no_such_tensor, quote
from sporelm.quant.stored_tensor import StoredTensor


class QuantizedFolder(Closing):
    """Safetensors files whose quantized weights are put together when they are asked for; the others are views.

    tensors    name -> SafetensorInfo; of a weight that is put together, its number format, shape and bytes
    notes      what differs from the folder, one line each
    """

    def __init__(self, files: SafetensorsFiles, scheme: Scheme) -> None:
        self.files, self.path, self.paths, self.metadata = files, files.path, files.paths, files.metadata
        self._made: dict[str, Assembled] = {}
        tensors = dict(files.tensors)
        notes: list[str] = []
        reasons: list[str] = []
        for weight in scheme.weights():
            for part in weight.parts:
                if tensors.pop(part, None) is None:
                    raise ModelFileError(f"{self.path}: {quote(part)} is a part of two weights")
            if weight.name in tensors:
                raise ModelFileError(f"{self.path} holds {quote(weight.name)} both as it is and quantized")
            self._made[weight.name] = weight
            notes.append(weight.note)
        for name, reason in scheme.unused():
            if tensors.pop(name, None) is not None:
                reasons.append(reason)
        for name, made in self._made.items():
            tensors[name] = SafetensorInfo(name, made.format.name, made.shape, 0, made.nbytes, -1)
        self.tensors: Mapping[str, SafetensorInfo] = MappingProxyType(tensors)
        self.notes = (*repeated(notes, "weight"), *repeated(reasons, "tensor"))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(self.tensors)

    def tensor(self, name: str) -> StoredTensor:
        """One tensor: put together, or a view of the file. Raises ModelFileError if there is none of that name."""
        made = self._made.get(name)
        if made is None:
            if name not in self.tensors:
                raise no_such_tensor(self.path, name, self.tensors)
            return self.files.tensor(name)
        blocks = made.blocks()
        for part in made.parts:
            drop_pages(self.files.raw(part))
        return StoredTensor(name, made.format, made.shape, blocks, made.order)

    def in_place(self, name: str) -> bool:
        """Whether a tensor's blocks have their columns where they belong: of act-order weights only values have."""
        made = self._made.get(name)
        return made is None or made.order is None

    def close(self) -> None:
        self.files.close()
