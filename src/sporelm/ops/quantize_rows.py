"""Rows rounded to int8 for integer dot products."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sporelm.ops.argument_checks import check_rows_or_slots
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed
from sporelm.quant.activations import quantize_int8


@dataclass(frozen=True)
class RowFormat:
    """Element type of rows that are rounded for integer dot products. Their physical layout belongs to the back-end."""

    name: str
    values: int  # that share one scale
    nbytes: int  # of the integers and the scale; back-ends may keep sums beside them


INT8_32 = RowFormat("int8/32", 32, 36)


INT8_256 = RowFormat("int8/256", 256, 260)


ROW_FORMATS = {kind.name: kind for kind in (INT8_32, INT8_256)}


class QuantizedRows(NamedTuple):
    """Rows as int8 with a float32 scale per group of values."""

    q: np.ndarray  # int8 [tokens, width], or [tokens, k, width]
    scales: np.ndarray  # float32 [tokens, groups], or [tokens, k, groups]
    dtype: RowFormat

    @property
    def shape(self) -> tuple[int, ...]:
        return self.q.shape

    def dequantize(self) -> np.ndarray:
        """Return float32 of the shape of `q`: the numbers that an integer dot product multiplies."""
        blocks = self.q.reshape(*self.scales.shape, self.dtype.values) * self.scales[..., None]
        return blocks.reshape(self.q.shape)


def _quantize_rows_spec(x: Any, *, activation: str = INT8_32.name) -> Spec:
    require(activation in ROW_FORMATS, f"activation {activation!r} must be one of {', '.join(ROW_FORMATS)}")
    given, kind = check_rows_or_slots("x", x), ROW_FORMATS[activation]
    whole = require_fixed(given.shape[-1]) % kind.values == 0
    require(whole, f"x {given} must have whole runs of {kind.values} columns, as every weight has that multiplies them")
    return Spec(given.shape, kind)


@op(_quantize_rows_spec)
def quantize_rows(x, *, activation="int8/32"):  # x [tokens, width], or [tokens, k, width]
    """Round each group of 32 (or 256) values to int8: scale = max|x| / 127, ties to even."""
    kind = ROW_FORMATS[activation]
    q, scales = quantize_int8(x.reshape(-1, x.shape[-1]), kind.values)
    return QuantizedRows(q.reshape(x.shape), scales.reshape(*x.shape[:-1], x.shape[-1] // kind.values), kind)
