"""The queue and cache of vision towers: computes image rows between steps of the text model, and caches recent ones."""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.prompt_images import PromptImage
from sporelm.engine.request import Request
from sporelm.engine.tower_runner import TowerJob, TowerRunner

MAX_CACHE_BYTES = 256 << 20  # of the cache of image rows
ImageKey = tuple[str, bytes]  # the cache salt of a request, and the key of its image


class ImageFailure(NamedTuple):
    """An image that the tower could not compute, and the requests that wait for it."""

    requests: Collection[Request]
    error: Exception


@dataclass(eq=False)
class ImageJob:
    """The computation of an image, and the requests that wait for it, by id."""

    number: int
    job: TowerJob
    requests: dict[int, Request] = field(default_factory=dict)

    @property
    def priority(self) -> int:
        return min(request.priority for request in self.requests.values())

    @property
    def tenant(self) -> str:
        """The tenant of the first waiting request."""
        return next(iter(self.requests.values())).tenant


class ImageEncoder:
    """Computes images one after the other: by priority, then round-robin between tenants.

    Rows are shared by requests with the same cache salt only, as prefixes are. Not thread-safe: callers hold the
    engine's lock.
    """

    def __init__(self, runner: TowerRunner, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.runner, self.max_bytes = runner, max_bytes
        self.num_computed = 0  # images
        self.num_cache_hits = 0
        self.seconds = 0.0  # spent in the tower
        self._cache: OrderedDict[ImageKey, NDArray[np.float32]] = OrderedDict()
        self._jobs: dict[ImageKey, ImageJob] = {}
        self._last_turns: dict[str, int] = {}  # by tenant, for tenants with waiting images
        self._num_turns = 0

    @property
    def has_work(self) -> bool:
        """Whether an image is waiting."""
        return bool(self._jobs)

    def check(self, image: PromptImage) -> None:
        """Raise RequestError for an image that the tower does not take."""
        self.runner.check(image.image)

    def find(self, image: PromptImage, cache_salt: str) -> bool:
        """Return whether the rows of an image are computed; cached rows are stored in the image."""
        if image.rows is None and (rows := self._cache.get((cache_salt, image.key))) is not None:
            self._cache.move_to_end((cache_salt, image.key))
            self.num_cache_hits += 1
            image.set_rows(rows)
        return image.rows is not None

    def enqueue(self, image: PromptImage, request: Request) -> None:
        """Queue an image of a request, which has passed `check`."""
        key = request.cache_salt, image.key
        if key not in self._jobs:
            self._num_turns += 1
            self._jobs[key] = ImageJob(self._num_turns, self.runner.start(image.image))
        self._jobs[key].requests[request.id] = request
        self._last_turns.setdefault(request.tenant, 0)

    def forget(self, request: Request) -> None:
        """Remove a request from the queue: it has ended, or has been scheduled."""
        if request.images:
            for key in [key for key, job in self._jobs.items() if request.id in job.requests]:
                del self._jobs[key].requests[request.id]
                if not self._jobs[key].requests:
                    self._drop(key)

    def advance(self, seconds: float | None) -> ImageFailure | None:
        """Work on the next image for about this time. If the tower fails, return the failure, and drop the image.

        An interrupted image (KeyboardInterrupt) is restarted from the beginning.
        """
        if not self._jobs:
            return None
        key = min(self._jobs, key=self._rank)
        job, began = self._jobs[key], perf_counter()
        try:
            job.job.advance(seconds)
        except Exception as error:
            self._drop(key)
            return ImageFailure(list(job.requests.values()), error)
        except BaseException:
            job.job = self.runner.start(job.job.image)
            raise
        finally:
            self.seconds += perf_counter() - began
        if job.job.rows is not None:
            self._num_turns += 1
            self._last_turns[job.tenant] = self._num_turns
            self._drop(key)
            self._keep(key, job.job.rows)
            self.num_computed += 1
        return None

    def close(self) -> None:
        """Free the programs of the tower."""
        self._jobs.clear()
        self._cache.clear()
        self.runner.close()

    def _rank(self, key: ImageKey) -> tuple[int, bool, int, int]:
        """Return the sort key of an image. One that has been started goes first among those of its priority."""
        job = self._jobs[key]
        return job.priority, job.job.num_pieces == 0, self._last_turns[job.tenant], job.number

    def _drop(self, key: ImageKey) -> None:
        del self._jobs[key]
        waiting = {request.tenant for job in self._jobs.values() for request in job.requests.values()}
        self._last_turns = {tenant: turn for tenant, turn in self._last_turns.items() if tenant in waiting}

    def _keep(self, key: ImageKey, rows: NDArray[np.float32]) -> None:
        """Cache rows, and evict the least recently used ones beyond `max_bytes`."""
        self._cache[key] = rows
        total = sum(each.nbytes for each in self._cache.values())
        while total > self.max_bytes and len(self._cache) > 1:
            total -= self._cache.popitem(last=False)[1].nbytes
