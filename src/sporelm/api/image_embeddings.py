"""Embeddings of pictures by an image encoder such as CLIP or SigLIP: one vector for each picture."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sporelm.api.embeddings import NOT_FINITE
from sporelm.engine.tower_runner import TowerRunner
from sporelm.errors import BackendError, RequestError
from sporelm.vision.image_processor import ImageProcessor


def embed_images(
    runner: TowerRunner,
    processor: ImageProcessor,
    pictures: Sequence[Sequence[NDArray[np.uint8]]],
    *,
    normalize: bool = True,
) -> NDArray[np.float32]:
    """Return a vector for each picture: float32 [pictures, width]. Vectors do not depend on the other pictures.

    pictures    the frames of each, uint8 [height, width, 3]; the vectors of several frames are averaged
    normalize   scale vectors to length 1

    Raises RequestError if the tower is not an image encoder, and for a picture of an impossible size.
    """
    if not runner.tower.is_encoder:
        raise RequestError(
            f"images: this model has no vectors of pictures (got {runner.tower.config.name}; allowed CLIP and SigLIP). "
            "Use an image encoder."
        )
    if not pictures:
        raise RequestError("there is nothing to embed: give at least one picture")
    vectors = [mean_vector([embed_frame(runner, processor, frame) for frame in frames]) for frames in pictures]
    return finish_rows(vectors, normalize=normalize)


def embed_frame(runner: TowerRunner, processor: ImageProcessor, frame: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the vector of one frame, uint8 [height, width, 3]: float32 [width]."""
    (image,) = processor.process(frame).images
    return runner.compute(image)[0]


def mean_vector(vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Return the mean of vectors, added in order: float64 [width]."""
    return np.add.accumulate(np.array(vectors, np.float64), axis=0)[-1] / len(vectors)


def finish_rows(vectors: Sequence[NDArray[np.float64]], *, normalize: bool) -> NDArray[np.float32]:
    """Return vectors as float32 [vectors, width], of length 1 if `normalize`. Raises BackendError for a NaN."""
    rows = np.stack(vectors)
    if not np.isfinite(rows).all():
        raise BackendError(NOT_FINITE)
    if normalize:
        lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        rows /= np.where(lengths > 0, lengths, 1)
    return rows.astype(np.float32)
