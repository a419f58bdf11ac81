"""Bicubic interpolation of learned position embeddings, as `torch.nn.functional.interpolate` computes it."""

import numpy as np
from numpy.typing import NDArray

SHARPNESS = -0.75  # the free parameter of the cubic convolution (Keys 1981)


def resize_bicubic(grid: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Return a grid [rows, columns, values] at another size, float32 [height, width, values], without antialiasing.

    Corners are not aligned: the centre of output i lies at (i + 0.5) * old / new - 0.5. The edge values are repeated.
    """
    if grid.shape[:2] == (height, width):
        return grid
    rows, columns = (_weights(old, new) for old, new in zip(grid.shape[:2], (height, width), strict=True))
    return np.einsum("yr,xc,rcv->yxv", rows, columns, grid.astype(np.float64), optimize=True).astype(np.float32)


def _weights(old: int, new: int) -> NDArray[np.float64]:
    """Return the matrix of interpolation from `old` to `new` points: float64 [new, old]."""
    centre = (np.arange(new) + 0.5) * (old / new) - 0.5
    first = np.floor(centre).astype(np.int64)
    found = np.zeros((new, old))
    for offset in range(-1, 3):
        distance = np.abs(centre - first - offset)
        near = ((SHARPNESS + 2) * distance - (SHARPNESS + 3)) * distance**2 + 1
        far = SHARPNESS * (((distance - 5) * distance + 8) * distance - 4)
        np.add.at(found, (np.arange(new), np.clip(first + offset, 0, old - 1)), np.where(distance <= 1, near, far))
    return found
