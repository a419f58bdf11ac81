"""The table of angles that `ops.rope` looks up."""

import numpy as np


def rope_table(context: int, head_dim: int, theta: float) -> np.ndarray:
    """float32 [context, head_dim]: the cosines of each position's head_dim / 2 angles, then their sines.

    Angle i at position p is p * theta ** (-2 i / head_dim) (Su et al. 2021), computed in float64 and rounded once.
    """
    frequencies = np.float64(theta) ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angles = np.arange(context, dtype=np.float64)[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
