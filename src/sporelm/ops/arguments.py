"""What ops ask of their arguments: element types, numbers of dimensions, and indices inside what they point into."""

from typing import Any

import numpy as np

from sporelm.errors import OpError
from sporelm.ops.op import require
from sporelm.ops.spec import Spec, spec_of
from sporelm.tensor.dtype import F32, I32, ElementType


def plain(name: str, value: Any, dtype: ElementType, rank: int) -> Spec:
    """The spec of an argument of this element type and number of dimensions. Raises OpError for another."""
    spec = spec_of(value)
    require(spec.dtype is dtype, f"{name} {spec} must hold {dtype.name} elements; convert it first")
    require(len(spec.shape) == rank, f"{name} {spec} must have {rank} dimension{'s' * (rank > 1)}")
    return spec


def rows(name: str, value: Any) -> Spec:
    """The spec of float32 [rows, width]."""
    return plain(name, value, F32, 2)


def wide(name: str, value: Any) -> Spec:
    """The spec of float32 [rows, width], or of [tokens, rows of each, width]."""
    return plain(name, value, F32, 3 if len(spec_of(value).shape) == 3 else 2)


def vector(name: str, value: Any) -> Spec:
    """The spec of float32 [width]."""
    return plain(name, value, F32, 1)


def ints(name: str, value: Any, rank: int = 1) -> Spec:
    """The spec of int32 [count] (or of more dimensions)."""
    return plain(name, value, I32, rank)


def matrix(name: str, value: Any) -> Spec:
    """The spec of a packed weight [out, in] of a number format."""
    spec = spec_of(value)
    require(len(spec.shape) == 2, f"{name} {spec} must have two dimensions [out, in]")
    activation = getattr(spec.dtype, "activation", None)
    require(activation is not None, f"{name} {spec} is not of a number format; a back-end's pack() makes it one")
    return spec


def expert_matrices(name: str, value: Any) -> Spec:
    """The spec of packed weights [experts, out, in] of a number format."""
    spec = spec_of(value)
    require(len(spec.shape) == 3, f"{name} {spec} must have three dimensions [experts, out, in]")
    activation = getattr(spec.dtype, "activation", None)
    require(activation is not None, f"{name} {spec} is not of a number format; a back-end's pack() makes it one")
    return spec


def within(name: str, values: np.ndarray, low: int, high: int) -> None:
    """Raise OpError unless low <= value < high for each; the message names the first that is not."""
    outside = (values < low) | (values >= high)
    if outside.any():
        at = int(outside.argmax())
        place = ", ".join(map(str, np.unravel_index(at, values.shape)))
        raise OpError(f"{name}[{place}] is {values.flat[at]}; it must lie between {low} and {high - 1}")
