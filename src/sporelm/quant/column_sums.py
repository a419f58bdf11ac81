"""Sums in the order of a C loop, which decides the last bits of the blocks that ggml's reference makes."""

from typing import Any

import numpy as np


def sum_columns(columns: Any) -> Any:
    """Sum each column from the first value to the last, in the type of the values: [size, n] -> [n].

    numpy adds along the first axis in this order, except for a single column, which it would sum pairwise.
    """
    return np.add.accumulate(columns)[-1] if columns.shape[1] == 1 else np.add.reduce(columns, axis=0)
