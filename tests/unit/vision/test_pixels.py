"""Arithmetic on pixels at its limits; the image processors compare the rest with transformers."""

import numpy as np
import pytest

from sporelm.errors import RequestError
from sporelm.vision import pixels as module
from sporelm.vision.pixels import BICUBIC, BILINEAR, center_crop, normalize, pad_around, resize, resize_and_crop


def ramp(height: int, width: int) -> np.ndarray:
    """A picture that becomes lighter along its longer side."""
    line = np.linspace(0, 255, max(height, width)).astype(np.uint8)
    picture = np.broadcast_to(line[:, None] if height > width else line, (height, width))
    return np.repeat(picture[:, :, None], 3, axis=2)


@pytest.mark.parametrize("shape", [(3, 400), (400, 3), (7, 900)])
@pytest.mark.parametrize("resample", [BILINEAR, BICUBIC])
def test_middle_of_a_long_picture(shape: tuple[int, int], resample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the middle is resized where all of it would be too large; values differ by rounding."""
    picture = ramp(*shape)
    whole = resize_and_crop(picture, 40, (30, 30), resample)
    monkeypatch.setattr(module, "MAX_RESIZED", 1000)
    middle = resize_and_crop(picture, 40, (30, 30), resample)
    assert middle.shape == whole.shape == (30, 30, 3)
    assert np.abs(middle.astype(int) - whole).max() <= 1


def test_a_line_of_many_pixels() -> None:
    """A picture of 2,000,000 x 1 pixels would have 1.8e11 of them."""
    picture = ramp(1, 2_000_000)
    found = resize_and_crop(picture, 300, (300, 300), BICUBIC)
    assert found.shape == (300, 300, 3)
    assert abs(int(found[150, 150, 0]) - 127) <= 1


def test_pictures_that_become_too_large() -> None:
    picture = np.zeros((1, 70_000, 3), np.uint8)
    with pytest.raises(RequestError, match=r"aspect ratio is too extreme \(got 70000x1, resized to 70000x"):
        pad_around(picture, 70_000, 70_000, (0, 0, 0))
    with pytest.raises(RequestError, match="Crop it"):
        resize(picture, 1 << 13, (1 << 13) + 1, BICUBIC)


@pytest.mark.parametrize(("height", "width"), [(5, 3), (4, 9), (2, 2), (7, 6)])
def test_crop_of_a_smaller_picture_has_zeros(height: int, width: int) -> None:
    picture = np.full((height, width, 3), 9, np.uint8)
    found = center_crop(picture, 6, 6)
    assert found.shape == (6, 6, 3)
    assert (found == 9).sum() == 3 * min(height, 6) * min(width, 6)


def test_normalized_values_are_rounded_like_those_of_transformers() -> None:
    picture = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    found = normalize(picture, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 1 / 255)
    scaled = (picture.astype(np.float64) * (1 / 255)).astype(np.float32)
    wanted = (scaled - np.array((0.1, 0.2, 0.3), np.float32)) / np.array((0.4, 0.5, 0.6), np.float32)
    assert np.array_equal(found, wanted.transpose(2, 0, 1))
