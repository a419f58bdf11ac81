"""Random weights of every number format."""

from zlib import crc32

import numpy as np

from sporelm.ops.quantize_rows import ROW_FORMATS
from sporelm.quant import FORMATS, QuantFormat, quantize_tensor
from sporelm.quant.random_blocks import make_random_blocks

# Formats with integer kernels or float kernels, and Q8_1 for the formats that every back-end widens.
FORMS = [
    form for form in FORMATS.values() if form.activation in ROW_FORMATS or form.name in ("F32", "F16", "BF16", "Q8_1")
]

# Formats that differ from others of FORMS only in how the blocks of a file are packed, or nearly so. Fewer kinds of
# products are tried with them.
ALIKE = frozenset(
    ("MXFP4", "Q2_0", "Q2_K", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS")
)


def blocks_of(form: type[QuantFormat], matrix: np.ndarray) -> np.ndarray:
    """Return blocks of a float32 matrix; for read-only formats random blocks of the same magnitude."""
    if form.can_quantize:
        return quantize_tensor(form, matrix)
    runs = np.ascontiguousarray(matrix).reshape(-1, form.values)
    raw = np.random.default_rng(crc32(runs.tobytes())).integers(0, 256, (len(runs), form.nbytes), np.uint8)
    return make_random_blocks(form, raw, runs)
