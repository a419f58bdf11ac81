"""The matrices of the model in stored tensors, and their rows there, for adapters.

An adapter adds B A to a stored tensor. If that tensor holds the rows of several matrices, each of them gets its own
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
    """A matrix of the model in a stored tensor.

    rows, columns   their numbers there, in the matrix's order; None: all of them, in place
    """

    name: str  # of the parameter, without ".weight"
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None

    def take_a(self, a: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the matrix's A [rank, in] from that of the stored tensor."""
        return a if self.columns is None else a[:, self.columns]

    def take_b(self, b: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the matrix's B [out, rank] from that of the stored tensor."""
        return b if self.rows is None else b[self.rows]


class StoredMatrix(NamedTuple):
    """A stored tensor [out, width] and the matrices that it holds."""

    out: int
    width: int
    parts: Sequence[MatrixPart]


def find_stored_matrices(mapping: TensorMapping, adaptable: Container[str]) -> dict[str, StoredMatrix]:
    """Return the stored tensors that adapters may be added to, by their names without ".weight".

    adaptable   names of adaptable parameters, without ".weight"; all parameters of a stored tensor must be among them
    """
    found = {}
    for source, group in mapping.by_source.items():
        weights = [each for each in group if each.param.name.endswith(WEIGHT)]
        if any(each.param.name.removesuffix(WEIGHT) not in adaptable or each.lora_conflict for each in weights):
            continue
        parts = [_locate_part(each) for each in weights]
        out = sum(each.param.shape[0] for each in weights)
        if weights and _covers_all([part.rows for part in parts], out):
            found[source.removesuffix(WEIGHT)] = StoredMatrix(out, weights[0].param.shape[1], parts)
    return found


def find_conflict(mapping: TensorMapping, tensor: str) -> str:
    """Return the reason why an adapter cannot be added to a stored tensor of this name without ".weight"; "" for a
    missing tensor and for any that is not the matrix of a product."""
    group = mapping.by_source.get(f"{tensor}{WEIGHT}") or mapping.by_source.get(tensor) or []
    return group[0].lora_conflict if group else ""


def _locate_part(tensor: MappedTensor) -> MatrixPart:
    """Return the rows and columns of a matrix in its stored tensor. A and B do not depend on the layout of the
    weight."""
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
