"""A tensor as stored in a file: blocks of a number format, mapped in place and not converted."""

from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sporelm.errors import ModelFileError, OpError
from sporelm.quant import QuantFormat, dequantize_tensor


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """One tensor in its file's number format.

    shape    logical and row-major: the outermost axis first, [out, in] for the weight of a linear layer
    blocks   uint8 [rows, bytes per row], a view of the file where possible. A row is a position of the outermost axis;
             a scalar, and a tensor whose only axis is split into blocks, is a single row
    order    the column order of the blocks, int32 [in]: column j of the blocks is column order[j] of the tensor; None
             if the columns are in order. Only `dequantize` restores the order

    `blocks` may be passed in any contiguous shape. Raises OpError if a row is not whole blocks, ModelFileError if the
    number of bytes is not what the shape needs.
    """

    name: str
    format: type[QuantFormat]
    shape: tuple[int, ...]
    blocks: NDArray[np.uint8] = field(repr=False)
    order: NDArray[np.int32] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        needed = self.format.tensor_nbytes(self.shape)
        blocks = self.blocks
        if blocks.dtype != np.uint8 or not blocks.flags.c_contiguous or blocks.size != needed:
            raise ModelFileError(
                f"tensor {self.name!r}: {self.format.name} {list(self.shape)} needs {needed} contiguous bytes,"
                f" got {blocks.size} of {blocks.dtype}"
            )
        rows = self.row_count
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "blocks", blocks.reshape(rows, needed // rows if rows else 0))

    @property
    def row_count(self) -> int:
        """Number of rows: the length of the outermost axis, or 1 if that axis itself is split into blocks."""
        has_rows = len(self.shape) > 1 or (len(self.shape) == 1 and self.format.values == 1)
        return self.shape[0] if has_rows else 1

    @property
    def nbytes(self) -> int:
        return self.blocks.size

    @property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)

    def dequantize(self) -> NDArray[np.float32]:
        """Return all values: float32 of the logical shape."""
        values = dequantize_tensor(self.format, np.ascontiguousarray(self.blocks), self.shape)
        if self.order is None:
            return values
        ordered = np.empty_like(values)
        ordered[..., self.order] = values
        return ordered

    def rows(self, start: int, stop: int) -> "StoredTensor":
        """Return rows start to stop - 1 as a view. Raises OpError outside the rows."""
        self._check_has_rows()
        if not 0 <= start <= stop <= self.row_count:
            raise OpError(f"tensor {self.name!r} has {self.row_count} rows; rows {start} to {stop} are not among them")
        return StoredTensor(
            self.name, self.format, (stop - start, *self.shape[1:]), self.blocks[start:stop], self.order
        )

    def take_range(self, dim: int, start: int, stop: int) -> "StoredTensor":
        """Return the positions start to stop - 1 of one axis: a view for the outermost one, else a copy of blocks.

        Raises OpError outside the axis, or where a boundary within the last axis separates a block.
        """
        length, block = self.shape[dim], self.format.values
        if not 0 <= start < stop <= length:
            raise OpError(f"tensor {self.name!r} has {length} positions in axis {dim}; {start} to {stop} leave them")
        if (start, stop) == (0, length):
            return self
        is_last = dim == len(self.shape) - 1
        if is_last and (start % block or (stop % block and stop != length)):
            raise OpError(f"tensor {self.name!r}: {start} to {stop} separates blocks of {block} values")
        if dim == 0 and not (is_last and block > 1):
            return self.rows(start, stop)
        inner = self.blocks.reshape(*self.shape[:-1], -1, self.format.nbytes)
        first, end = (start // block, -(-stop // block)) if is_last else (start, stop)
        index = (*[slice(None)] * dim, slice(first, end))
        shape = (*self.shape[:dim], stop - start, *self.shape[dim + 1 :])
        return StoredTensor(self.name, self.format, shape, np.ascontiguousarray(inner[index]), self.order)

    def take_rows(self, index: ArrayLike) -> "StoredTensor":
        """Return a copy of the rows with these numbers, in this order. Blocks are copied, never dequantized.

        Raises OpError for a row outside the tensor.
        """
        self._check_has_rows()
        order = np.asarray(index, np.int64)
        if order.ndim != 1 or (order.size and not 0 <= int(order.min()) <= int(order.max()) < self.row_count):
            raise OpError(f"tensor {self.name!r} has {self.row_count} rows; the row numbers given leave them")
        return StoredTensor(self.name, self.format, (len(order), *self.shape[1:]), self.blocks[order], self.order)

    def _check_has_rows(self) -> None:
        if not self.shape or (len(self.shape) == 1 and self.format.values > 1):
            raise OpError(f"tensor {self.name!r} of shape {list(self.shape)} in {self.format.name} has no rows to take")
