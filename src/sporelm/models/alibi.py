"""Slopes of attention with linear biases (ALiBi)."""

import numpy as np


def alibi_slopes(heads: int, max_bias: float) -> np.ndarray:
    """Return the slopes, float32 [heads]: 2 ** (-max_bias / n), its square, its cube and so on, for the largest power
    of two n within `heads`.

    The remaining heads take every other slope of 2 n heads (Press et al. 2022, and the authors' code).
    """
    whole = 1 << (heads.bit_length() - 1)
    exponents = np.concatenate([np.arange(1, whole + 1), np.arange(1, 2 * (heads - whole), 2) / 2])
    return (2.0 ** (-max_bias / whole * exponents)).astype(np.float32)
