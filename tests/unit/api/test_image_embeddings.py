"""Vectors of pictures, of a tower that returns what it is told."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sporelm.api.image_embeddings import embed_images
from sporelm.errors import BackendError, RequestError
from sporelm.models.tower_inputs import ImageInput
from sporelm.vision.image_processor import ProcessedImage


def runner_of(*, is_encoder: bool = True) -> Any:
    """A runner whose vector of a picture is its patches."""
    tower = SimpleNamespace(is_encoder=is_encoder, config=SimpleNamespace(name="llava"))
    return SimpleNamespace(tower=tower, compute=lambda image: image.patches)


PROCESSOR: Any = SimpleNamespace(
    process=lambda pixels: ProcessedImage("", (ImageInput(pixels[0, :, 0][None].astype(np.float32), ((1, 1, 1),), 1),))
)


def frame(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)[None, :, None].repeat(3, axis=2)


def test_one_vector_for_each_picture() -> None:
    found = embed_images(runner_of(), PROCESSOR, [[frame(3, 4)], [frame(0, 2)]])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.array([[0.6, 0.8], [0, 1]]), rtol=1e-6)


def test_vectors_of_frames_are_averaged() -> None:
    found = embed_images(runner_of(), PROCESSOR, [[frame(3, 4), frame(9, 0), frame(0, 2)]], normalize=False)
    np.testing.assert_allclose(found, [[4, 2]])


def test_a_vector_of_zeros_stays_one() -> None:
    assert (embed_images(runner_of(), PROCESSOR, [[frame(0, 0)]]) == 0).all()


def test_errors() -> None:
    with pytest.raises(RequestError, match=r"no vectors of pictures \(got llava; allowed CLIP and SigLIP\)"):
        embed_images(runner_of(is_encoder=False), PROCESSOR, [[frame(1)]])
    with pytest.raises(RequestError, match="give at least one picture"):
        embed_images(runner_of(), PROCESSOR, [])
    damaged = runner_of()
    damaged.compute = lambda image: np.array([[np.nan]], np.float32)
    with pytest.raises(BackendError, match="not a number"):
        embed_images(damaged, PROCESSOR, [[frame(1)]])
