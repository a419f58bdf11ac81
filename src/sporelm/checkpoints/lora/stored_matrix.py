"""Stored tensors as adapters see them: which matrices of the model each holds, in which of its rows.

An adapter adds B A to a stored tensor. Where that tensor holds the rows of several matrices, each of them gets its own
rows of B, and all of A.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.tensor_mapping import MappedTensor, TensorMapping
from sporelm.checkpoints.transforms import PermuteColumns, PermuteRotary, TakeRows

WEIGHT = ".weight"


class MatrixPart(NamedTuple):
    """A matrix of the model in a stored tensor: the numbers of its rows and columns there, in the matrix's order; None
    if they are all of them, in place."""

    name: str  # of the parameter, without ".weight"
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None

    def take_a(self, a: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the matrix's A [rank, in] of the stored tensor's."""
        return a if self.columns is None else a[:, self.columns]

    def take_b(self, b: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the matrix's B [out, rank] of the stored tensor's."""
        return b if self.rows is None else b[self.rows]


class StoredMatrix(NamedTuple):
    """A stored tensor [out, width] and the matrices that it holds."""

    out: int
    width: int
    parts: Sequence[MatrixPart]


def find_stored_matrices(mapping: TensorMapping, adaptable: Container[str]) -> dict[str, StoredMatrix]:
    """Return the stored tensors that adapters may add to, by their names without ".weight".

    adaptable   names of parameters, without ".weight", that adapters may add to; all that a stored tensor holds must be
                among them
    """
    found = {}
    for source, group in mapping.by_source.items():
        weights = [each for each in group if each.param.name.endswith(WEIGHT)]
        if any(each.param.name.removesuffix(WEIGHT) not in adaptable or each.lora_conflict for each in weights):
            continue
        parts = [_part(each) for each in weights]
        out = sum(each.param.shape[0] for each in weights)
        if weights and _covers_all([part.rows for part in parts], out):
            found[source.removesuffix(WEIGHT)] = StoredMatrix(out, weights[0].param.shape[1], parts)
    return found


def find_conflict(mapping: TensorMapping, tensor: str) -> str:
    """Return why nothing can be added to a stored tensor of this name without ".weight"; "" for one that is not there,
    or is not a matrix of a product."""
    group = mapping.by_source.get(f"{tensor}{WEIGHT}") or mapping.by_source.get(tensor) or []
    return group[0].lora_conflict if group else ""


def _part(tensor: MappedTensor) -> MatrixPart:
    """Return which rows and columns of its stored tensor a matrix has. How it lies, A and B do not follow."""
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None
    for transform in tensor.transforms:
        if isinstance(transform, TakeRows | PermuteRotary):
            rows = transform.index if rows is None else rows[transform.index]
        if isinstance(transform, PermuteColumns):
            columns = transform.index if columns is None else columns[transform.index]
    return MatrixPart(tensor.param.name.removesuffix(WEIGHT), rows, columns)


def _covers_all(rows: Sequence[NDArray[np.int64] | None], out: int) -> bool:
    """Return whether each row of a stored tensor belongs to one matrix."""
    taken = [each for each in rows if each is not None]
    if len(taken) < len(rows):
        return len(rows) == 1
    return np.array_equal(np.sort(np.concatenate(taken)), np.arange(out))
