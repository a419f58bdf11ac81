"""The code books of the IQ formats: which groups of four or eight magnitudes an index stands for, and sign codes.

The six books are tables of llama.cpp (ggml-common.h, MIT licence, see NOTICE). `grids.npz` holds them as int8, one
row per index; tests/data/make_grids.py wrote it from the `gguf` package. They are read when first needed.
"""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_name("grids.npz")
SHAPES = {  # indices, values of each
    "IQ1": (2048, 8),  # -1, 0, 1; IQ1_S and IQ1_M
    "IQ2_XXS": (256, 8),  # 8, 25, 43; of the other two IQ2 too
    "IQ2_XS": (512, 8),
    "IQ2_S": (1024, 8),
    "IQ3_XXS": (256, 4),  # 4, 12, 20, 28, 36, 44, 52, 62
    "IQ3_S": (512, 4),  # the odd numbers to 15
}


@cache
def grid(name: str) -> NDArray[np.int8]:
    """The code book `name` (see SHAPES), not to be written to: int8 [indices, values of each]."""
    with np.load(FILE) as tables:
        table: NDArray[np.int8] = tables[name]
    table.flags.writeable = False
    return table


def look_up(name: str, indices: NDArray[np.integer]) -> NDArray[np.int8]:
    """The groups at `indices` of a code book, one after the other: integers [n, k] -> int8 [n, k * values of each]."""
    return grid(name)[indices].reshape(-1, indices.shape[1] * SHAPES[name][1])


def with_signs(magnitudes: NDArray[np.int8], signs: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Magnitudes, negated where a bit is set: int8 [n, 8 * k], bytes of signs uint8 [n, k], lowest bit first."""
    negative = np.unpackbits(signs, axis=1, bitorder="little").view(np.bool_)
    return np.where(negative, -magnitudes, magnitudes)


def even_signs(codes: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Bytes of eight signs from codes of seven: the eighth makes the number of negative ones even.

    Integers of 0 to 127, any shape -> uint8 of that shape.
    """
    folded = codes ^ codes >> 4
    folded = folded ^ folded >> 2
    folded = folded ^ folded >> 1
    return (codes | (folded & 1) << 7).astype(np.uint8)
