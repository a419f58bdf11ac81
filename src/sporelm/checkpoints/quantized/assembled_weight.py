"""The description of a weight that is stored in parts and assembled on demand."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.quant import QuantFormat

CHUNK_VALUES = 1 << 20  # values assembled at a time, to bound temporary memory

Rows = Callable[[int, int], NDArray[np.uint8]]  # blocks of rows start to stop - 1: uint8 [rows, bytes a row]


@dataclass(frozen=True)
class AssembledWeight:
    """One weight: its format and shape [..., out, in], and the function that assembles its rows.

    note    difference from the folder; "" if there is none
    order   int32 [in], the column of the weight in each stored column; None: in place
    """

    name: str
    format: type[QuantFormat]
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    rows: Rows = field(repr=False)
    note: str = ""
    order: NDArray[np.int32] | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return self.format.tensor_nbytes(self.shape)

    def blocks(self) -> NDArray[np.uint8]:
        """Return all blocks, uint8 [rows, bytes a row], assembled a bounded number of rows at a time."""
        count, width = prod(self.shape[:-1]), self.shape[-1]
        result = np.empty((count, self.nbytes // max(1, count)), np.uint8)
        step = max(1, CHUNK_VALUES // max(1, width))
        for start in range(0, count, step):
            with np.errstate(over="ignore", invalid="ignore"):  # loaders check that values are finite
                result[start : start + step] = self.rows(start, min(count, start + step))
        return result


class Scheme(Protocol):
    """One way to store quantized weights in parts.

    Raises ModelFileError for parts that do not fit, UnsupportedModel for unsupported options.
    """

    def weights(self) -> Iterable[AssembledWeight]:
        """Yield the quantized weights."""

    def find_unused(self) -> Iterator[tuple[str, str]]:
        """Yield tensors that no weight needs, each with the reason why it may be ignored."""
