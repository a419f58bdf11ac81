"""The job of an `IsolatedProcess` that decodes pictures."""

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress

from PIL import Image

from sporelm.processes.isolated_process import BinaryResult
from sporelm.vision.image_limits import ImageLimits
from sporelm.vision.pillow_decoding import decode_picture

_M_MMAP_THRESHOLD = -3  # of glibc's mallopt
_MAPPED_BYTES = 1 << 20


def load_decoder(*limits: float) -> Callable[[bytes], BinaryResult]:
    """Return the job, for the values of an `ImageLimits`: it decodes the bytes of a file.

    Its value is [format, width, height, number of frames]; its parts are the frames, [height, width, 3] bytes each.
    """
    checked = ImageLimits(*limits)  # type: ignore[arg-type]
    Image.MAX_IMAGE_PIXELS = checked.max_pixels  # for sizes that Pillow reads after the header
    _return_memory()

    def decode(data: bytes) -> BinaryResult:
        picture = decode_picture(data, checked)
        value = [picture.format, picture.width, picture.height, len(picture.frames)]
        return BinaryResult(value, picture.frames)

    return decode


def _return_memory() -> None:
    """Make glibc return freed pixel buffers to the system. It would otherwise hold half a gigabyte after a large
    picture."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # of another C library
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
