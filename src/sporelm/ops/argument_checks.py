"""Checks of an op's arguments: element types, ranks, and the range of indices. They return the argument's spec."""

from typing import Any

import numpy as np

from sporelm.errors import OpError
from sporelm.ops.op import require
from sporelm.ops.spec import Spec, spec_of
from sporelm.tensor.dtype import F32, I32, ElementType


def check_argument(name: str, value: Any, dtype: ElementType, rank: int) -> Spec:
    """Return the spec of an argument. Raise OpError unless it has this element type and rank."""
    spec = spec_of(value)
    require(spec.dtype is dtype, f"{name} {spec} must hold {dtype.name} elements; convert it first")
    require(len(spec.shape) == rank, f"{name} {spec} must have {rank} dimension{'s' * (rank > 1)}")
    return spec


def check_rows(name: str, value: Any) -> Spec:
    """Check that an argument is float32 [rows, width]."""
    return check_argument(name, value, F32, 2)


def check_rows_or_slots(name: str, value: Any) -> Spec:
    """Check that an argument is float32 [rows, width] or [tokens, k, width]."""
    return check_argument(name, value, F32, 3 if len(spec_of(value).shape) == 3 else 2)


def check_vector(name: str, value: Any) -> Spec:
    """Check that an argument is float32 [width]."""
    return check_argument(name, value, F32, 1)


def check_ints(name: str, value: Any, rank: int = 1) -> Spec:
    """Check that an argument is int32 of a rank."""
    return check_argument(name, value, I32, rank)


def check_matrix(name: str, value: Any) -> Spec:
    """Check that an argument is a packed weight [out, in] of a number format."""
    spec = spec_of(value)
    require(len(spec.shape) == 2, f"{name} {spec} must have two dimensions [out, in]")
    activation = getattr(spec.dtype, "activation", None)
    require(activation is not None, f"{name} {spec} is not of a number format; a back-end's pack() makes it one")
    return spec


def check_expert_matrices(name: str, value: Any) -> Spec:
    """Check that an argument is packed weights [experts, out, in] of a number format."""
    spec = spec_of(value)
    require(len(spec.shape) == 3, f"{name} {spec} must have three dimensions [experts, out, in]")
    activation = getattr(spec.dtype, "activation", None)
    require(activation is not None, f"{name} {spec} is not of a number format; a back-end's pack() makes it one")
    return spec


def check_range(name: str, values: np.ndarray, low: int, high: int) -> None:
    """Raise OpError unless low <= value < high for each value. The message names the first value outside."""
    outside = (values < low) | (values >= high)
    if outside.any():
        at = int(outside.argmax())
        place = ", ".join(map(str, np.unravel_index(at, values.shape)))
        raise OpError(f"{name}[{place}] is {values.flat[at]}; it must lie between {low} and {high - 1}")
