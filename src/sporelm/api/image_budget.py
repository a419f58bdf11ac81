"""Limits on the pictures of one request: their number, their image rows, and the time to read them."""

from collections.abc import Callable
from time import monotonic

from sporelm.errors import ContextOverflow, RequestError

MAX_IMAGES = 128  # of one request; each frame of an animation counts
MAX_SECONDS = 60.0  # for all pictures of one request
IsCancelled = Callable[[], bool]


class ImageBudget:
    """Counts the pictures of one request while they are read, so that no more are decoded than the prompt can hold.

    num_images     pictures of the request; an animation counts once
    max_rows       image rows that fit into the context
    max_images     limit on the frames of all pictures
    max_seconds    wall-clock time for all pictures; None: no limit, for the user of this process
    is_cancelled   returns whether the client has left; called from any thread
    """

    def __init__(
        self,
        num_images: int,
        max_rows: int,
        *,
        max_images: int = MAX_IMAGES,
        max_seconds: float | None = None,
        is_cancelled: IsCancelled | None = None,
    ) -> None:
        """Raises RequestError for too many pictures."""
        self.num_images, self.max_rows, self.max_images = num_images, max_rows, max_images
        self.max_seconds, self._is_cancelled = max_seconds, is_cancelled
        self._began = monotonic()
        self._number = 0  # of the picture being read, from 1
        self._num_frames = self._num_rows = 0
        if num_images > max_images:
            raise self._make_number_error(num_images)

    @property
    def label(self) -> str:
        """The name of the picture being read, for errors."""
        return f"image {self._number} of {self.num_images}"

    def begin_image(self) -> None:
        """Start counting the next picture. Raises RequestError as `check_time` does."""
        self._number += 1
        self.check_time()

    def check_time(self) -> None:
        """Raise RequestError after the time limit, or if reading was cancelled."""
        if self._is_cancelled is not None and self._is_cancelled():
            raise RequestError(f"{self.label}: reading it was cancelled")
        if self.max_seconds is not None and monotonic() - self._began > self.max_seconds:
            raise RequestError(
                f"{self.label}: reading the pictures takes too long (allowed {self.max_seconds:g} s for all of a "
                "request). Send fewer or smaller pictures."
            )

    def add_frame(self, num_rows: int) -> None:
        """Count a frame with this many image rows, before it is processed.

        Raises ContextOverflow for more rows than the context holds; RequestError for too many frames, and as
        `check_time` does.
        """
        self.check_time()
        self._num_frames += 1
        if self._num_frames > self.max_images:
            raise self._make_number_error(self._num_frames)
        self._num_rows += num_rows
        if self._num_rows > self.max_rows:
            raise ContextOverflow(
                f"{self.label}: the prompt is too long (got {self._num_rows} tokens of pictures so far, {num_rows} of "
                f"this one; allowed {self.max_rows}). Send fewer or smaller pictures, or raise the option max_context.",
                context=self.max_rows,
            )

    def _make_number_error(self, number: int) -> RequestError:
        place = f"{self.label}: " if self._number else "images: "
        return RequestError(
            f"{place}too many pictures (got {number}; allowed {self.max_images} in a request, and each frame of an "
            "animation counts). Send fewer."
        )
