"""Rows of numbers to blocks of a number format, and back: what conversions of model files are made of."""

from typing import Any

import numpy as np

from sporelm.errors import SporeError
from sporelm.ops.arguments import plain, rows, vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed
from sporelm.quant import QuantFormat, format_of
from sporelm.tensor.dtype import F32, I32, U8


def _format(name: str) -> type[QuantFormat]:
    try:
        return format_of(name)
    except SporeError as reason:
        require(False, str(reason))
        raise


def _rounded(values: Any, importance: Any = None, *, format: str) -> Spec:
    kind, given = _format(format), rows("values", values)
    width = fixed(given.shape[1])
    require(width % kind.values == 0, f"values {given} must have rows of whole blocks of {kind.values}")
    require(kind.can_quantize, f"{kind.name} is only read; take a format that values can be rounded to")
    if importance is not None:
        fits = vector("importance", importance).shape == (width,)
        require(fits, f"importance {vector('importance', importance)} must have an element for each of {width} columns")
    return Spec((given.shape[0], width // kind.values * kind.nbytes), U8)


def _widened(blocks: Any, *, format: str) -> Spec:
    kind, given = _format(format), plain("blocks", blocks, U8, 2)
    nbytes = fixed(given.shape[1])
    require(nbytes % kind.nbytes == 0, f"blocks {given} must have rows of whole blocks of {kind.nbytes} bytes")
    return Spec((given.shape[0], nbytes // kind.nbytes * kind.values), F32)


def _one_each(values: Any) -> Spec:
    return Spec(rows("values", values).shape[:1], I32)


@op(_rounded)
def quantize_blocks(values, importance=None, *, format):  # values [rows, width], importance [width]
    """The blocks of each row, uint8 [rows, width / values * nbytes]; `importance` as in `quant.quantize_tensor`.

    Rows with NaN or infinity give any bytes in formats whose values share a scale; `count_nonfinite` finds them.
    """
    kind, weights = format_of(format), None
    if importance is not None and kind.weighted:
        weights = kind.weigh(values, importance).reshape(-1, kind.values)
    blocks = kind.quantize(np.ascontiguousarray(values).reshape(-1, kind.values), weights)
    return blocks.reshape(len(values), -1)


@op(_widened)
def dequantize_blocks(blocks, *, format):  # blocks uint8 [rows, bytes]
    """The numbers of each row of blocks, float32 [rows, bytes / nbytes * values]."""
    kind = format_of(format)
    return kind.dequantize(np.ascontiguousarray(blocks).reshape(-1, kind.nbytes)).reshape(len(blocks), -1)


@op(_one_each)
def count_nonfinite(values):  # values [rows, width]
    """How many numbers of each row are NaN or infinite, int32 [rows]."""
    return (~np.isfinite(values)).sum(axis=1, dtype=np.int32)
