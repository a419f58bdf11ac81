"""One file per number format: the conversion of values to its blocks, one block a lane.

A quantizer's `quantize(work, x, weights)` reads the numbers of the blocks from the column `x`, and the weight of each
from `weights` if the format uses importance and it is given. It sets the fields of the blocks in `work`.
"""

from collections.abc import Callable
from typing import NamedTuple

from sporelm.backends.cpu.quantizers import (
    iq4_nl,
    iq4_xs,
    mxfp4,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    tq1_0,
    tq2_0,
)
from sporelm.backends.cpu.quantizers.lane_columns import Column, QuantizerWorkspace


class Quantizer(NamedTuple):
    """The conversion of values to blocks of a format; `values` and `nbytes` are the format's.

    by_row   whether weights are importance with the mean square of the whole row (`quant.block_rounding.weigh_by_row`)
    """

    values: int
    nbytes: int
    quantize: Callable[[QuantizerWorkspace, Column, Column | None], None]
    by_row: bool = False


QUANTIZERS: dict[str, Quantizer] = {
    "Q4_0": Quantizer(32, 18, q4_0.quantize, by_row=True),
    "Q4_1": Quantizer(32, 20, q4_1.quantize, by_row=True),
    "Q5_0": Quantizer(32, 22, q5_0.quantize, by_row=True),
    "Q5_1": Quantizer(32, 24, q5_1.quantize, by_row=True),
    "Q8_0": Quantizer(32, 34, q8_0.quantize),
    "Q2_K": Quantizer(256, 84, q2_k.quantize),
    "Q3_K": Quantizer(256, 110, q3_k.quantize),
    "Q4_K": Quantizer(256, 144, q4_k.quantize),
    "Q5_K": Quantizer(256, 176, q5_k.quantize),
    "Q6_K": Quantizer(256, 210, q6_k.quantize),
    "IQ4_NL": Quantizer(32, 18, iq4_nl.quantize),
    "IQ4_XS": Quantizer(256, 136, iq4_xs.quantize),
    "TQ1_0": Quantizer(256, 54, tq1_0.quantize),
    "TQ2_0": Quantizer(256, 66, tq2_0.quantize),
    "MXFP4": Quantizer(32, 17, mxfp4.quantize),
}
