"""Sums in C's order: one value after the other, which decides the last bits that blocks of ggml's reference have."""

from typing import Any

import numpy as np


def sum_down(columns: Any) -> Any:
    """The sum of each column, first value to last, in the type of the values: [size, n] -> [n].

    So numpy adds along the first axis, but of a single column, which it takes for a run and adds in pairs.
    """
    return np.add.accumulate(columns)[-1] if columns.shape[1] == 1 else np.add.reduce(columns, axis=0)
