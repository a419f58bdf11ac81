"""The table of angles that `ops.rope` looks up."""

import numpy as np

ROWS = 4096  # positions computed together: the float64 values of all would be six times the table


def rope_table(context: int, head_dim: int, theta: float) -> np.ndarray:
    """float32 [context, head_dim]: the cosines of each position's head_dim / 2 angles, then their sines.

    Angle i at position p is p * theta ** (-2 i / head_dim) (Su et al. 2021), computed in float64 and rounded once.
    """
    frequencies = np.float64(theta) ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    table = np.empty((context, head_dim), np.float32)
    for first in range(0, context, ROWS):
        rows = table[first : first + ROWS]
        angles = np.arange(first, first + len(rows), dtype=np.float64)[:, None] * frequencies
        rows[:, : head_dim // 2] = np.cos(angles)
        rows[:, head_dim // 2 :] = np.sin(angles)
    return table
