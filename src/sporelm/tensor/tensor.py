"""Tensors: storage in a device's memory, with an element type and a layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sporelm.errors import OpError
from sporelm.tensor.dtype import ElementType
from sporelm.tensor.layout import Layout


class Device(Protocol):
    """A device that runs ops on the tensors in its memory; back-ends implement it."""

    name: str

    def run(self, op: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run one op now and return its result tensors (one, or a tuple)."""

    def to_numpy(self, tensor: "Tensor") -> np.ndarray:
        """Return the tensor's values as a numpy array of its logical shape."""

    def contiguous(self, tensor: "Tensor") -> "Tensor":
        """Return a contiguous copy of a view, or the tensor itself if it is not a view."""


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
        """Return the same elements through `layout`, without a copy."""
        return replace(self, layout=layout)

    def numpy(self) -> np.ndarray:
        """Return the values as a numpy array of the logical shape."""
        return self.device.to_numpy(self)

    def contiguous(self) -> "Tensor":
        """Return a contiguous copy of the values, or this tensor itself if it is not a view."""
        return self.device.contiguous(self)

    def __repr__(self) -> str:
        return f"Tensor({self.dtype.name}, {list(self.shape)}, {self.device.name})"


def strided_view(elements: np.ndarray, layout: Layout) -> np.ndarray:
    """Return a read-only view of `elements`, a flat array, through a layout. Raises OpError outside its elements."""
    spans = [stride * (length - 1) for length, stride in zip(layout.shape, layout.strides, strict=True)]
    low = layout.offset + sum(step for step in spans if step < 0)
    high = layout.offset + sum(step for step in spans if step > 0)
    if not layout.size:
        return np.zeros(layout.shape, elements.dtype)
    if low < 0 or high >= elements.size:
        raise OpError(f"layout {layout} reaches from {low} to {high}, there are elements 0 to {elements.size - 1}")
    strides = [stride * elements.itemsize for stride in layout.strides]
    return np.lib.stride_tricks.as_strided(elements[layout.offset :], layout.shape, strides, writeable=False)
