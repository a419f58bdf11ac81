"""Matrices of experts as one weight [experts, out, in]: some files hold them so, others hold each by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.backends.backend import WeightArray
from sporelm.errors import OpError
from sporelm.quant import dequantize_tensor


@dataclass(frozen=True, eq=False)
class Stacked:
    """Matrices of one shape and one number format, seen as one weight. Copies nothing until it is asked for all."""

    matrices: tuple[WeightArray, ...]

    @property
    def format(self) -> Any:
        return self.matrices[0].format

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.matrices), *self.matrices[0].shape)

    @property
    def blocks(self) -> np.ndarray:
        """uint8 [experts, bytes of each]."""
        return np.stack([np.ascontiguousarray(matrix.blocks).reshape(-1) for matrix in self.matrices])

    def dequantize(self) -> np.ndarray:
        return np.stack([matrix.dequantize() for matrix in self.matrices])


@dataclass(frozen=True, eq=False)
class Matrix:
    """One of the matrices of a weight [experts, out, in]: its blocks are a view."""

    format: Any
    shape: tuple[int, ...]
    blocks: np.ndarray

    def dequantize(self) -> np.ndarray:
        return dequantize_tensor(self.format, np.ascontiguousarray(self.blocks), self.shape)


def stacked(weights: Sequence[WeightArray]) -> Stacked:
    """One weight [experts, out, in] of matrices [out, in], for `pack`. Raises OpError unless they are alike."""
    kinds = sorted({f"{weight.format.name}{list(weight.shape)}" for weight in weights})
    if len(kinds) != 1 or len(weights[0].shape) != 2:
        raise OpError(
            f"experts must have matrices of one shape and one number format, got {', '.join(kinds) or 'none'}"
        )
    return Stacked(tuple(weights))


def matrices(weight: WeightArray) -> Sequence[WeightArray]:
    """The matrices of a weight of two or three dimensions."""
    if isinstance(weight, Stacked):
        return weight.matrices
    if len(weight.shape) == 2:
        return [weight]
    experts, *shape = weight.shape
    return [Matrix(weight.format, tuple(shape), each) for each in weight.blocks.reshape(experts, -1)]
