"""Arithmetic on pixels as the image processors of transformers do it with Pillow: the same filters, the same rounding.

Pictures are uint8 [height, width, 3] until `normalize` makes them float32 [3, height, width].
"""

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sporelm.errors import RequestError

Pixels = NDArray[np.uint8]  # [height, width, 3]
NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)  # Pillow's numbers, which are those of the settings
FILTERS = (NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING)
MAX_RESIZED = 1 << 26  # pixels of a resized or padded picture
BYTE_VALUES = 256


def check_size(height: int, width: int, old: tuple[int, ...]) -> None:
    """Raise RequestError if a picture of the size `old`, (height, width, ...), would become too large."""
    if height * width > MAX_RESIZED:
        raise RequestError(
            f"image: the aspect ratio is too extreme (got {old[1]}x{old[0]}, resized to {width}x{height}; "
            f"allowed {MAX_RESIZED} pixels after resizing). Crop it."
        )


def resize(pixels: Pixels, height: int, width: int, resample: int) -> Pixels:
    """Return a picture of this size, by one of FILTERS. Raises RequestError if it would be too large."""
    check_size(height, width, pixels.shape)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((width, height), Image.Resampling(resample)))


def shortest_edge_size(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return (height, width) of a picture whose shorter side becomes `edge`; the other one is rounded down."""
    if width <= height:
        return int(edge * height / width), edge
    return edge, int(edge * width / height)


def fitting_size(height: int, width: int, box: tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) of a picture resized to fit a box, (height, width); the shorter side is rounded up."""
    scale_y, scale_x = box[0] / height, box[1] / width
    if scale_x < scale_y:
        return min(ceil(height * scale_x), box[0]), box[1]
    return box[0], min(ceil(width * scale_y), box[1])


def resize_and_crop(pixels: Pixels, edge: int, crop: tuple[int, int], resample: int) -> Pixels:
    """Return the middle of a picture whose shorter side is resized to `edge`: (height, width) `crop`.

    For a very long picture only that region is computed. Pillow may then resize its axes in the other order, which
    changes the rounding.
    """
    old_height, old_width = pixels.shape[:2]
    height, width = shortest_edge_size(old_height, old_width, edge)
    if height * width <= MAX_RESIZED:
        return center_crop(resize(pixels, height, width, resample), *crop)
    top, left = max(0, (height - crop[0]) // 2), max(0, (width - crop[1]) // 2)
    size = min(height, crop[0]), min(width, crop[1])
    y, x = old_height / height, old_width / width
    box = left * x, top * y, min(old_width, (left + size[1]) * x), min(old_height, (top + size[0]) * y)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    middle = image.resize((size[1], size[0]), Image.Resampling(resample), box)
    return center_crop(np.asarray(middle), *crop)


def center_crop(pixels: Pixels, height: int, width: int) -> Pixels:
    """Return the middle of a picture; zeros where the picture is smaller."""
    old_height, old_width = pixels.shape[:2]
    top, left = (old_height - height) // 2, (old_width - width) // 2
    if top >= 0 and left >= 0:
        return pixels[top : top + height, left : left + width]
    padded = np.zeros((max(height, old_height), max(width, old_width), pixels.shape[2]), np.uint8)
    above, before = ceil((padded.shape[0] - old_height) / 2), ceil((padded.shape[1] - old_width) / 2)
    padded[above : above + old_height, before : before + old_width] = pixels
    top, left = max(0, top + above), max(0, left + before)
    return padded[top : top + height, left : left + width]


def pad_around(pixels: Pixels, height: int, width: int, color: Sequence[int]) -> Pixels:
    """Return a picture of this size with the given one in its middle. Raises RequestError if it would be too large."""
    check_size(height, width, pixels.shape)
    padded = np.empty((height, width, pixels.shape[2]), np.uint8)
    padded[:] = color
    top, left = (height - pixels.shape[0]) // 2, (width - pixels.shape[1]) // 2
    padded[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return padded


def normalize(pixels: Pixels, mean: Sequence[float], std: Sequence[float], scale: float) -> NDArray[np.float32]:
    """Return (pixels * scale - mean) / std, each channel with its own mean and std: float32 [3, height, width].

    transformers multiplies in float64, rounds to float32, then subtracts and divides in float32.
    """
    values = (np.arange(BYTE_VALUES, dtype=np.float64) * scale).astype(np.float32)
    found = np.empty((pixels.shape[2], *pixels.shape[:2]), np.float32)
    for channel, (middle, spread) in enumerate(zip(mean, std, strict=True)):
        table = (values - np.float32(middle)) / np.float32(spread)
        np.take(table, pixels[:, :, channel], out=found[channel])
    return found
