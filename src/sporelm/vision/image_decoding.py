"""Decodes pictures into RGB arrays, in a child process that is killed when a picture exceeds its limits.

The child's output is not trusted, since a malicious picture may control the child. It is a JSON list of four values
and raw pixels, checked against the limits.
"""

import asyncio
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import BackendError, RequestError
from sporelm.processes.isolated_process import (
    BinaryResult,
    IsolatedProcess,
    OverBudget,
    ProcessDied,
    ProcessLimits,
    SharedResource,
)
from sporelm.vision.image_formats import FORMATS, detect_format
from sporelm.vision.image_limits import ImageLimits as ImageLimits
from sporelm.vision.image_limits import too_many_bytes, too_slow

CLOCK_FACTOR = 3.0  # limit of wall-clock time, as a multiple of CPU time: the child has a low priority
MAX_WAITING_PICTURES = 64  # of one decoder
MAX_MESSAGE_CHARS = 400  # of an error that the child sends

_CLOSED = "the image decoder was closed; open the model again"


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """A decoded picture.

    frames   uint8 [height, width, 3] RGB each, all of one size, read-only; more than one only of an animation
    format   PNG, JPEG, WebP, GIF or BMP
    size     (width, height) of a frame in pixels, after the EXIF orientation was applied
    """

    frames: tuple[NDArray[np.uint8], ...]
    format: str
    size: tuple[int, int]


class ImageDecoder:
    """Decodes PNG, JPEG, WebP, GIF and BMP files within limits. Any thread may use it; the owner closes it.

    The child process starts with the first picture, and decodes one picture after the other, round-robin between
    tenants. Only the picture that exceeds its limits or crashes the child fails.
    """

    def __init__(self, limits: ImageLimits | None = None, *, isolated: bool = True) -> None:
        """Start no process yet. With `isolated` false, pictures are decoded in this process, for pictures that the
        user of this process chose. Memory is then unlimited, and time is checked between frames only."""
        self.limits = limits or ImageLimits()
        self._process: IsolatedProcess | None = None
        if not isolated:
            return
        process_limits = ProcessLimits(
            job_memory_bytes=self.limits.max_memory,
            stall_seconds=CLOCK_FACTOR * self.limits.max_seconds,
            max_waiting_jobs=MAX_WAITING_PICTURES,
            max_result_bytes=3 * self.limits.max_total_pixels,
        )
        self._process = IsolatedProcess("image", process_limits, _CLOSED)
        values = astuple(self.limits)
        self._resource = SharedResource(0, "sporelm.vision.image_worker:load_decoder", lambda: values)

    def decode(self, data: bytes, tenant: str = "") -> DecodedImage:
        """Return the picture in a file's bytes. `tenant` is the queue that it waits in.

        Raises RequestError for a file that is not a supported picture, or exceeds a limit; QueueFull if too many
        pictures wait; BackendError if the child process cannot be started, or after `close`.
        """
        if self._process is None:
            return self._decode_here(data)
        job = self._submit(self._process, data, tenant)
        try:
            return self._unpack(self._process, job.result())
        except (OverBudget, ProcessDied, RequestError) as error:
            raise self._explain(error) from None

    async def decode_async(self, data: bytes, tenant: str = "") -> DecodedImage:
        """Return the picture in a file's bytes, without blocking the event loop. Raises as `decode` does."""
        process = self._process
        if process is None:
            return await asyncio.to_thread(self._decode_here, data)
        job = self._submit(process, data, tenant)
        try:
            return self._unpack(process, await asyncio.wrap_future(job))
        except (OverBudget, ProcessDied, RequestError) as error:
            raise self._explain(error) from None

    @property
    def pid(self) -> int | None:
        """The process id of the child, while there is one."""
        return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """Kill the child process; waiting pictures raise BackendError. Closing again does nothing."""
        if self._process is not None:
            self._process.close()

    def __enter__(self) -> "ImageDecoder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _submit(self, process: IsolatedProcess, data: bytes, tenant: str) -> "Future[Any]":
        if len(data) > self.limits.max_bytes:
            raise too_many_bytes(len(data), self.limits)
        detect_format(data)
        return process.submit(self._resource, (data,), self.limits.max_seconds, tenant)

    def _decode_here(self, data: bytes) -> DecodedImage:
        from sporelm.vision.pillow_decoding import decode_picture

        picture = decode_picture(data, self.limits)
        shape = (picture.height, picture.width, 3)
        frames = tuple(np.frombuffer(frame, np.uint8).reshape(shape) for frame in picture.frames)
        return DecodedImage(frames, picture.format, (picture.width, picture.height))

    def _unpack(self, process: IsolatedProcess, result: Any) -> DecodedImage:
        """Return the picture that the child sent. A child that sends anything else is killed."""
        limits = self.limits
        match result:
            case BinaryResult(value=[str(name), int(width), int(height), int(count)], parts=[pixels]):
                is_valid = (
                    name in FORMATS
                    and min(width, height, count) >= 1
                    and width * height <= limits.max_pixels
                    and count <= max(limits.max_frames, 1)
                    and len(pixels) == 3 * width * height * count
                )
            case _:
                is_valid = False
        if not is_valid:
            process.kill_child()
            raise BackendError("image: the decoder sent an invalid reply. Send the picture again.")
        frames = np.frombuffer(pixels, np.uint8).reshape(count, height, width, 3)
        frames.flags.writeable = False
        return DecodedImage(tuple(frames), name, (width, height))

    def _explain(self, error: Exception) -> Exception:
        """Return the user-facing error for an error of a job."""
        if isinstance(error, OverBudget):
            return too_slow(self.limits)
        if isinstance(error, ProcessDied):
            return RequestError(
                f"image: the decoder ended while it read the picture ({error}), which is damaged, or needs more "
                f"memory than is allowed ({self.limits.max_memory >> 20} MiB). Save it again with an image program."
            )
        if type(error) is not RequestError:  # QueueFull
            return error
        return RequestError(" ".join(str(error)[:MAX_MESSAGE_CHARS].split()))
