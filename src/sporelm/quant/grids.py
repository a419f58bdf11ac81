"""The codebooks ("grids") of the IQ formats, each index a group of four or eight magnitudes, and their sign codes.

The six codebooks are tables of llama.cpp (ggml-common.h, MIT licence, see NOTICE). `grids.npz` holds them as int8, one
row per index; tests/data/make_grids.py wrote it from the `gguf` package. They are loaded on first use.
"""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_name("grids.npz")
SHAPES = {  # number of indices, values per index
    "IQ1": (2048, 8),  # -1, 0, 1; IQ1_S and IQ1_M
    "IQ2_XXS": (256, 8),  # 8, 25, 43; the other IQ2 codebooks as well
    "IQ2_XS": (512, 8),
    "IQ2_S": (1024, 8),
    "IQ3_XXS": (256, 4),  # 4, 12, 20, 28, 36, 44, 52, 62
    "IQ3_S": (512, 4),  # the odd numbers to 15
}


@cache
def load_grid(name: str) -> NDArray[np.int8]:
    """Return the codebook `name` (see SHAPES), read-only: int8 [indices, values per index]."""
    with np.load(FILE) as tables:
        table: NDArray[np.int8] = tables[name]
    table.flags.writeable = False
    return table


def look_up(name: str, indices: NDArray[np.integer]) -> NDArray[np.int8]:
    """Look up `indices` in a codebook and join the groups: integers [n, k] -> int8 [n, k * values per index]."""
    return load_grid(name)[indices].reshape(-1, indices.shape[1] * SHAPES[name][1])


def apply_signs(magnitudes: NDArray[np.int8], signs: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Negate magnitudes where a sign bit is set: int8 [n, 8 * k], sign bytes uint8 [n, k], lowest bit first."""
    negative = np.unpackbits(signs, axis=1, bitorder="little").view(np.bool_)
    return np.where(negative, -magnitudes, magnitudes)


def expand_sign_codes(codes: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Expand 7-bit sign codes to bytes of eight signs; the eighth makes the number of negative values even.

    Integers from 0 to 127, any shape -> uint8 of that shape.
    """
    folded = codes ^ codes >> 4
    folded = folded ^ folded >> 2
    folded = folded ^ folded >> 1
    return (codes | (folded & 1) << 7).astype(np.uint8)
