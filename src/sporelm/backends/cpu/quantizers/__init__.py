"""One file per number format: how it rounds values to its blocks, one block a lane.

A quantizer's `quantize(work, x, weights)` reads the numbers of the blocks from the column `x` (and how much each counts
from `weights`, for formats that heed it and where importance is given) and sets the fields of the blocks in `work`.
"""

from collections.abc import Callable
from typing import NamedTuple

from sporelm.backends.cpu.quantizers import q4_0, q8_0
from sporelm.backends.cpu.quantizers.columns import Column, Work


class Quantizer(NamedTuple):
    """How a format's blocks are made; `values` and `nbytes` are the format's.

    by_row   whether importance becomes weights with the mean square of the whole row (`quant.rounding.weigh_by_row`)
    """

    values: int
    nbytes: int
    quantize: Callable[[Work, Column, Column | None], None]
    by_row: bool = False


QUANTIZERS: dict[str, Quantizer] = {
    "Q4_0": Quantizer(32, 18, q4_0.quantize, by_row=True),
    "Q8_0": Quantizer(32, 34, q8_0.quantize),
}
