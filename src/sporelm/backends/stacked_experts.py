"""Expert matrices as one weight [experts, out, in]. Some files store them so, others store each matrix by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.backends.protocol import WeightArray
from sporelm.errors import OpError
from sporelm.quant import dequantize_tensor


@dataclass(frozen=True, eq=False)
class StackedExperts:
    """Matrices of one shape and one number format as one weight. Copies nothing until all blocks are needed."""

    matrices: tuple[WeightArray, ...]

    @property
    def format(self) -> Any:
        return self.matrices[0].format

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.matrices), *self.matrices[0].shape)

    @property
    def blocks(self) -> np.ndarray:
        """Return uint8 [experts, bytes of each]."""
        return np.stack([np.ascontiguousarray(matrix.blocks).reshape(-1) for matrix in self.matrices])

    def dequantize(self) -> np.ndarray:
        return np.stack([matrix.dequantize() for matrix in self.matrices])


@dataclass(frozen=True, eq=False)
class ExpertMatrix:
    """One matrix of a weight [experts, out, in]. Its blocks are a view."""

    format: Any
    shape: tuple[int, ...]
    blocks: np.ndarray

    def dequantize(self) -> np.ndarray:
        return dequantize_tensor(self.format, np.ascontiguousarray(self.blocks), self.shape)


def stack_experts(weights: Sequence[WeightArray]) -> StackedExperts:
    """Return matrices [out, in] as one weight [experts, out, in] for `pack`. Raise OpError unless shape and format are
    equal."""
    kinds = sorted({f"{weight.format.name}{list(weight.shape)}" for weight in weights})
    if len(kinds) != 1 or len(weights[0].shape) != 2:
        raise OpError(
            f"experts must have matrices of one shape and one number format, got {', '.join(kinds) or 'none'}"
        )
    return StackedExperts(tuple(weights))


def list_matrices(weight: WeightArray) -> Sequence[WeightArray]:
    """Return the matrices of a weight of two or three dimensions."""
    if isinstance(weight, StackedExperts):
        return weight.matrices
    if len(weight.shape) == 2:
        return [weight]
    experts, *shape = weight.shape
    return [ExpertMatrix(weight.format, tuple(shape), each) for each in weight.blocks.reshape(experts, -1)]
