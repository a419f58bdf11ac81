"""Tensors of a composite back-end, and a view of one of its parts that makes such tensors."""

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from sporelm.backends.protocol import WeightArray
from sporelm.tensor.tensor import Tensor

if TYPE_CHECKING:
    from sporelm.backends.cpu_offload.cpu_offload_backend import CpuOffloadBackend


@dataclass
class PartCopies:
    """The storage of a tensor of a composite back-end: its copies, by the part on which they lie.

    home   the only part with the weight or the cache; None: it is copied to each part that uses it
    """

    copies: dict[int, Tensor]
    home: int | None = None
    lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return next(iter(self.copies.values())).shape


class WeightPart:
    """One part of a composite, for loading weights: its tensors belong to the composite, and stay on the part."""

    def __init__(self, composite: "CpuOffloadBackend", part: int) -> None:
        self._composite, self._index = composite, part
        self._backend = composite.parts[part]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def tensor(self, array: np.ndarray) -> Tensor:
        return self._composite.own(self._backend.tensor(array), self._index, self._index)

    def pack(self, weight: WeightArray) -> Tensor:
        return self._composite.own(self._backend.pack(weight), self._index, self._index)
