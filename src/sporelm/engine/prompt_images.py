"""Images in prompts: the ids of their rows (image tokens, one embedding each), and their rotary positions.

Each row of an image has its own id in a context: a hash of the image and the row's index, larger than any vocabulary
id. So prefixes, sessions and forks compare images as they compare texts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import shake_128
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import RequestError
from sporelm.models.tower_inputs import ImageInput

IMAGE_IDS = 1 << 62  # ids from here on are those of image rows; they fit into an int64
Rows = NDArray[np.float32]


def image_row_ids(key: bytes, count: int) -> list[int]:
    """Return the ids of the rows of an image; `key` is a hash of everything that its rows depend on."""
    bits = np.frombuffer(shake_128(b"image row ids" + key).digest(8 * count), "<u8")
    ids: list[int] = (bits >> np.uint64(2) | np.uint64(IMAGE_IDS)).tolist()
    return ids


def is_image_id(token: int) -> bool:
    """Return whether an id stands for a row of an image."""
    return token >= IMAGE_IDS


@dataclass(eq=False)
class PromptImage:
    """A run of image rows in a prompt.

    start      position of the first row
    image      the input of the tower
    key        a hash of everything that the rows depend on: the input and the tower
    token_id   the vocabulary id of the model's image token, which replaces a row's id in output
    positions  int32 [num_rows, 3], the rotary positions of its rows relative to the first; None for models without
               M-RoPE
    rows       float32 [num_rows, columns], once the tower has computed them
    """

    start: int
    image: ImageInput
    key: bytes
    token_id: int
    positions: NDArray[np.int32] | None = None
    rows: Rows | None = None

    @property
    def num_rows(self) -> int:
        return self.image.num_rows

    @property
    def stop(self) -> int:
        """The position past the last row."""
        return self.start + self.image.num_rows

    def set_rows(self, rows: Rows) -> None:
        """Store the computed rows, and drop the patches, which take as much memory and are no longer needed."""
        self.rows = rows
        self.image = replace(self.image, patches=self.image.patches[:0].copy())

    def copy(self) -> "PromptImage":
        """Return a copy of this run for another request."""
        return PromptImage(self.start, self.image, self.key, self.token_id, self.positions, self.rows)


class PromptIds(list[int]):
    """The ids of a prompt with images: rows of images have ids of their own (`image_row_ids`)."""

    def __init__(self, ids: Iterable[int], images: Sequence[PromptImage]) -> None:
        super().__init__(ids)
        self.images = tuple(images)

    def to_vocabulary_ids(self) -> list[int]:
        """Return the ids with `token_id` in place of each image row's id."""
        ids = list(self)
        for image in self.images:
            ids[image.start : image.stop] = [image.token_id] * image.num_rows
        return ids


class ScheduledImage(NamedTuple):
    """The rows of an image that a step computes.

    first   index of the first one among the sequence's tokens in the step
    values  float32 [rows, columns]
    start   position of the image's first row, and past its last, in the sequence
    stop    see `start`
    """

    first: int
    values: Rows
    start: int
    stop: int


def insert_image_ids(token_ids: Sequence[int], images: Sequence[PromptImage]) -> list[int]:
    """Return the ids of a prompt with the ids of image rows inserted at each image.

    Raises RequestError unless the images are in order, inside the prompt, and at image tokens.
    """
    all_ids, end = list(token_ids), 0
    for number, each in enumerate(images, 1):
        if not end <= each.start < each.stop <= len(all_ids):
            raise RequestError(
                f"image {number}: not inside the prompt (got rows {each.start} to {each.stop}; allowed {end} to "
                f"{len(all_ids)}). List images in the order of their positions."
            )
        row_ids, ids = image_row_ids(each.key, each.num_rows), all_ids[each.start : each.stop]
        if ids != row_ids and any(token != each.token_id for token in ids):
            raise RequestError(f"image {number}: not at image tokens of the prompt. Put its image tokens there.")
        all_ids[each.start : each.stop] = row_ids
        end = each.stop
    return all_ids


class RopePositions:
    """The rotary positions of a context with images: three components each (M-RoPE, Wang et al. 2024).

    Those of an image follow its grid; the text after it continues from the largest of them.
    """

    def __init__(self, images: Sequence[PromptImage]) -> None:
        parts: list[NDArray[np.integer[Any]]] = []
        position, place = 0, 0  # the rotary position, and the index in the sequence
        for each in images:
            assert each.positions is not None
            parts.append(np.repeat(np.arange(position, position + each.start - place)[:, None], 3, axis=1))
            position += each.start - place
            parts.append(position + each.positions)
            position += int(each.positions.max()) + 1
            place = each.stop
        self._image_positions = np.concatenate([np.zeros((0, 3), np.int32), *parts]).astype(np.int32)
        self._delta = position - place  # rotary position minus index, for the text after the last image

    def between(self, begin: int, end: int) -> NDArray[np.int32]:
        """Return the positions of the context's rows from `begin` to `end`: int32 [rows, 3]."""
        known = self._image_positions[begin:end]
        text = np.arange(begin + len(known), end, dtype=np.int32) + np.int32(self._delta)
        return np.concatenate([known, np.repeat(text[:, None], 3, axis=1)]) if len(text) else known
