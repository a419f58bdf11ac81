"""Specs of values: extents, some of them symbols, and an element type."""

from dataclasses import dataclass
from typing import Any

from sporelm.errors import OpError
from sporelm.tensor.dtype import ElementType


@dataclass(frozen=True)
class Symbol:
    """An extent that changes from step to step, such as tokens, sequences or output rows. It is at most `high`."""

    name: str
    high: int

    def __repr__(self) -> str:
        return f"{self.name}<={self.high}"


Extent = int | Symbol


def require_fixed(extent: Extent) -> int:
    """Return an extent that must be known before the first step. Raise OpError if it is a symbol."""
    if isinstance(extent, Symbol):
        raise OpError(f"extent {extent} changes from step to step where a fixed one is needed; use a number")
    return extent


@dataclass(frozen=True)
class Spec:
    """Shape and element type of a value."""

    shape: tuple[Extent, ...]
    dtype: ElementType

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"

    @property
    def bound(self) -> tuple[int, ...]:
        """Return the shape with every symbol at its upper limit."""
        return tuple(extent.high if isinstance(extent, Symbol) else extent for extent in self.shape)


def spec_of(value: Any) -> Spec:
    """Return the spec of a traced value or of a tensor."""
    spec = getattr(value, "spec", None)
    return spec if spec is not None else Spec(tuple(value.shape), value.dtype)
