"""A tensor: elements in some device's memory, with the layout that says where each one is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sporelm.tensor.dtype import ElementType
from sporelm.tensor.layout import Layout


class Device(Protocol):
    """What runs ops on the tensors that live in its memory; back-ends implement it."""

    name: str

    def run(self, op: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run one op now and return its result tensors (one, or a tuple)."""

    def to_numpy(self, tensor: "Tensor") -> np.ndarray:
        """The tensor's values as a numpy array of its logical shape."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """Elements of `dtype` at `layout` inside `storage`, which only `device` knows how to read.

    Metadata transforms (transpose, slice, ...) are methods of `layout`; `view` gives the tensor that sees the same
    elements through another layout.
    """

    dtype: ElementType
    layout: Layout
    storage: Any
    device: Device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    def view(self, layout: Layout) -> "Tensor":
        """The same elements seen through `layout`. Copies nothing."""
        return replace(self, layout=layout)

    def numpy(self) -> np.ndarray:
        return self.device.to_numpy(self)

    def __repr__(self) -> str:
        return f"Tensor({self.dtype.name}, {list(self.shape)}, {self.device.name})"
