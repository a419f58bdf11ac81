"""Conversion between rows of numbers and blocks of a number format, as conversions of model files need it."""

from typing import Any

import numpy as np

from sporelm.errors import SporeError
from sporelm.ops.argument_checks import check_argument, check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed
from sporelm.quant import QuantFormat, format_of
from sporelm.tensor.dtype import F32, I32, U8


def _find_format(name: str) -> type[QuantFormat]:
    try:
        return format_of(name)
    except SporeError as reason:
        require(False, str(reason))
        raise


def _quantize_blocks_spec(values: Any, importance: Any = None, *, format: str) -> Spec:
    kind, given = _find_format(format), check_rows("values", values)
    width = require_fixed(given.shape[1])
    require(width % kind.values == 0, f"values {given} must have rows of whole blocks of {kind.values}")
    require(kind.can_quantize, f"{kind.name} is only read; take a format that values can be rounded to")
    if importance is not None:
        fits = check_vector("importance", importance).shape == (width,)
        require(
            fits,
            f"importance {check_vector('importance', importance)} must have an element for each of {width} columns",
        )
    return Spec((given.shape[0], width // kind.values * kind.nbytes), U8)


def _dequantize_blocks_spec(blocks: Any, *, format: str) -> Spec:
    kind, given = _find_format(format), check_argument("blocks", blocks, U8, 2)
    nbytes = require_fixed(given.shape[1])
    require(nbytes % kind.nbytes == 0, f"blocks {given} must have rows of whole blocks of {kind.nbytes} bytes")
    return Spec((given.shape[0], nbytes // kind.nbytes * kind.values), F32)


def _count_nonfinite_spec(values: Any) -> Spec:
    return Spec(check_rows("values", values).shape[:1], I32)


@op(_quantize_blocks_spec)
def quantize_blocks(values, importance=None, *, format):  # values [rows, width], importance [width]
    """Return the blocks of each row, uint8 [rows, width / values * nbytes]; `importance` as in `quant.quantize_tensor`.

    In formats whose values share a scale, the bytes of a row with NaN or infinity are unspecified. `count_nonfinite`
    finds such rows.
    """
    kind, weights = format_of(format), None
    if importance is not None and kind.can_weigh:
        weights = kind.weigh(values, importance).reshape(-1, kind.values)
    blocks = kind.quantize(np.ascontiguousarray(values).reshape(-1, kind.values), weights)
    return blocks.reshape(len(values), -1)


@op(_dequantize_blocks_spec)
def dequantize_blocks(blocks, *, format):  # blocks uint8 [rows, bytes]
    """Return the numbers of each row of blocks, float32 [rows, bytes / nbytes * values]."""
    kind = format_of(format)
    return kind.dequantize(np.ascontiguousarray(blocks).reshape(-1, kind.nbytes)).reshape(len(blocks), -1)


@op(_count_nonfinite_spec)
def count_nonfinite(values):  # values [rows, width]
    """Count the numbers of each row that are NaN or infinite: int32 [rows]."""
    return (~np.isfinite(values)).sum(axis=1, dtype=np.int32)
