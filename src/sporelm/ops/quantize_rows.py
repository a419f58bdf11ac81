"""Rows rounded to int8 for integer dot products, or to FP8 for FP8 tensor cores."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sporelm.ops.argument_checks import check_rows_or_slots
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed
from sporelm.quant.activations import quantize_e4m3, quantize_int8


@dataclass(frozen=True)
class RowFormat:
    """Element type of rows that are rounded for dot products. Their physical layout belongs to the back-end."""

    name: str
    values: int  # that share one scale
    nbytes: int  # of the numbers and the scale; back-ends may keep sums beside them


INT8_32 = RowFormat("int8/32", 32, 36)


INT8_256 = RowFormat("int8/256", 256, 260)


E4M3_128 = RowFormat("e4m3/128", 128, 132)


ROW_FORMATS = {kind.name: kind for kind in (INT8_32, INT8_256, E4M3_128)}


class QuantizedRows(NamedTuple):
    """Rows as int8, or as E4M3 numbers in float32, with a float32 scale per group of values."""

    q: np.ndarray  # [tokens, width], or [tokens, k, width]
    scales: np.ndarray  # float32 [tokens, groups], or [tokens, k, groups]
    dtype: RowFormat

    @property
    def shape(self) -> tuple[int, ...]:
        return self.q.shape

    def dequantize(self) -> np.ndarray:
        """Return float32 of the shape of `q`: the numbers that a dot product multiplies."""
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
    """Round each group of 32 (or 256) values to int8: scale = max|x| / 127, ties to even. With "e4m3/128" round each
    group of 128 values to E4M3: scale = max|x| / 448."""
    kind = ROW_FORMATS[activation]
    quantize = quantize_e4m3 if kind is E4M3_128 else quantize_int8
    q, scales = quantize(x.reshape(-1, x.shape[-1]), kind.values)
    return QuantizedRows(q.reshape(x.shape), scales.reshape(*x.shape[:-1], x.shape[-1] // kind.values), kind)
