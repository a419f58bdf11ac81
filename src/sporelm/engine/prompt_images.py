"""Images in prompts: the ids that stand for their rows, their positions, and the rows that a vision tower computes.

A row of an image has an id of its own in a context: a hash of the image and of the row's number, above all ids of
vocabularies. So prefixes, sessions and forks compare images as they compare texts.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import shake_128
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.tower_runner import TowerJob, TowerRunner
from sporelm.errors import RequestError
from sporelm.models.tower_inputs import ImageInput

IMAGE_IDS = 1 << 62  # ids from here on stand for rows of images; they fit into an int64
MAX_CACHE_BYTES = 256 << 20  # rows of images that are kept
Rows = NDArray[np.float32]


def image_row_ids(key: bytes, count: int) -> list[int]:
    """Return the ids of the rows of an image; `key` is a hash of all that its rows depend on."""
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
    key        a hash of all that the rows depend on: the input and the tower
    token_id   the id in the vocabulary that stands for a row
    positions  int32 [num_rows, 3], the rotary positions of its rows from that of the first; None for models whose
               positions have one number
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

    def copy(self) -> "PromptImage":
        """Return the same run for another request."""
        return PromptImage(self.start, self.image, self.key, self.token_id, self.positions, self.rows)


class PromptIds(list[int]):
    """The ids of a prompt with images: rows of images have ids of their own (`image_row_ids`)."""

    def __init__(self, ids: Iterable[int], images: Sequence[PromptImage]) -> None:
        super().__init__(ids)
        self.images = tuple(images)


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
    """Return the ids of a prompt with those of image rows at the places of images.

    Raises RequestError unless the images stand in order, inside the prompt, at ids of image rows.
    """
    found, end = list(token_ids), 0
    for number, each in enumerate(images, 1):
        if not end <= each.start < each.stop <= len(found):
            raise RequestError(
                f"image {number}: not inside the prompt (got rows {each.start} to {each.stop}; allowed {end} to "
                f"{len(found)}). Give images in the order of their places."
            )
        ids = image_row_ids(each.key, each.num_rows)
        given = found[each.start : each.stop]
        if given != ids and any(token != each.token_id for token in given):
            raise RequestError(f"image {number}: other tokens stand at its place. Put its row token there.")
        found[each.start : each.stop] = ids
        end = each.stop
    return found


class RopePositions:
    """The rotary positions of a context with images: three numbers each (M-RoPE, Wang et al. 2024).

    Those of an image follow its grid; the text behind it continues after the greatest of them.
    """

    def __init__(self, images: Sequence[PromptImage]) -> None:
        parts: list[NDArray[np.integer[Any]]] = []
        position, place = 0, 0  # rotary, and in the sequence
        for each in images:
            assert each.positions is not None
            parts.append(np.repeat(np.arange(position, position + each.start - place)[:, None], 3, axis=1))
            position += each.start - place
            parts.append(position + each.positions)
            position += int(each.positions.max()) + 1
            place = each.stop
        self._known = np.concatenate(parts).astype(np.int32)
        self._delta = position - place  # of the text behind the last image

    def between(self, begin: int, end: int) -> NDArray[np.int32]:
        """Return the positions of the context's rows from `begin` to `end`: int32 [rows, 3]."""
        known = self._known[begin:end]
        text = np.arange(begin + len(known), end, dtype=np.int32) + np.int32(self._delta)
        return np.concatenate([known, np.repeat(text[:, None], 3, axis=1)]) if len(text) else known


class ImageEncoder:
    """Computes the rows of images, one image after the other, between steps; keeps those used last.

    Not thread-safe: the engine's lock is held.
    """

    def __init__(self, runner: TowerRunner, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.runner, self.max_bytes = runner, max_bytes
        self.num_computed = 0  # images
        self.num_found = 0  # images whose rows were kept from before
        self.seconds = 0.0  # of all work
        self._cache: OrderedDict[bytes, Rows] = OrderedDict()
        self._jobs: OrderedDict[bytes, TowerJob] = OrderedDict()
        self._users: dict[bytes, set[int]] = {}  # ids of the requests that wait for an image

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    def find(self, image: PromptImage) -> bool:
        """Return whether the rows of an image are computed; if so, the image has them."""
        if image.rows is None and (rows := self._cache.get(image.key)) is not None:
            self._cache.move_to_end(image.key)
            self.num_found += 1
            image.rows = rows
        return image.rows is not None

    def enqueue(self, image: PromptImage, request_id: int) -> None:
        """Compute the rows of an image after those that wait already."""
        if image.key not in self._jobs:
            self._jobs[image.key] = self.runner.start(image.image)
            self._users[image.key] = set()
        self._users[image.key].add(request_id)

    def advance(self, seconds: float | None, is_waiting: Callable[[int], bool]) -> None:
        """Work for about this time on the first image that a request waits for.

        An image whose requests have all ended is dropped. If the tower fails, so does this, and the image is dropped.
        """
        while self._jobs:
            key, job = next(iter(self._jobs.items()))
            if not any(is_waiting(request_id) for request_id in self._users[key]):
                self._drop(key)
                continue
            began = perf_counter()
            try:
                job.advance(seconds)
            except BaseException:
                self._drop(key)
                raise
            finally:
                self.seconds += perf_counter() - began
            if job.rows is not None:
                self._drop(key)
                self._keep(key, job.rows)
                self.num_computed += 1
            return

    def users_of_first(self) -> set[int]:
        """Return the ids of the requests that wait for the image whose turn it is."""
        return set(next(iter(self._users.values()), ()))

    def close(self) -> None:
        """Free the programs of the tower."""
        self._jobs.clear()
        self._users.clear()
        self._cache.clear()
        self.runner.close()

    def _drop(self, key: bytes) -> None:
        del self._jobs[key], self._users[key]

    def _keep(self, key: bytes, rows: Rows) -> None:
        """Keep rows, and as many of those used last as fit beside them."""
        self._cache[key] = rows
        total = sum(each.nbytes for each in self._cache.values())
        while total > self.max_bytes and len(self._cache) > 1:
            total -= self._cache.popitem(last=False)[1].nbytes
