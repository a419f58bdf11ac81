"""The layout of rounded activations: one record per 32 or 256 values, written by kernels/quantize_rows.py."""

from typing import Any

from sporelm.errors import UnsupportedOp
from sporelm.ops.quantize_rows import INT8_32, INT8_256

# 32 values: int8 q[32], then f32 scale, f32 scale * sum(q), i32 -8 * sum(q[:16]), i32 -8 * sum(q)
RECORD = 48
X_SCALE, X_SCALED_SUM, X_BIAS_FIRST, X_BIAS = 32, 36, 40, 44

# 32 values widened to 16 bits: i16 q[0::2], then the last 16 bytes of the record at the same offset, then i16 q[1::2]
WIDE_RECORD = 80
WIDE_ODD = 48

# 256 values: int8 q[256], then f32 scale, 28 bytes unused, i16 sums of 16 values [16], i16 sums of 32 values [8]
SUPER_RECORD = 320
SUPER_SCALE, SUPER_SUMS_16, SUPER_SUMS_32 = 256, 272, 304

RECORDS = {INT8_32.name: RECORD, INT8_256.name: SUPER_RECORD}


def records_bytes(width: int, kind: Any) -> int:
    """Return the bytes of a row of `width` values. Records of 32 are even in number, as two may form a group of
    weights."""
    if kind.name not in RECORDS:
        raise UnsupportedOp(
            f"quantize_rows: not supported by cpu (got {kind.name}; allowed {', '.join(RECORDS)}). Use the back-end "
            "cuda."
        )
    count = width // kind.values
    if kind is INT8_32:
        count += count % 2
    return count * RECORDS[kind.name]
