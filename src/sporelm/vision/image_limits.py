"""Limits for decoding pictures, and the errors of pictures that exceed them."""

from dataclasses import dataclass

from sporelm.errors import RequestError


@dataclass(frozen=True)
class ImageLimits:
    """Limits for decoding one picture.

    max_bytes          of the file
    max_pixels         of one frame
    max_total_pixels   of all frames that are returned
    max_frames         frames returned of an animation; if it has more, evenly spaced ones
    max_seconds        of CPU time; the limit of wall-clock time is CLOCK_FACTOR times as long
    max_memory         bytes that decoding may allocate; enforced on Linux only, in the isolated process
    """

    max_bytes: int = 20 << 20
    max_pixels: int = 40_000_000
    max_total_pixels: int = 64_000_000
    max_frames: int = 16
    max_seconds: float = 10.0
    max_memory: int = 1 << 30


def too_many_bytes(nbytes: int | str, limits: ImageLimits) -> RequestError:
    """Return the error for a file of `nbytes` bytes, a number or a description."""
    return RequestError(
        f"image: the file is too large (got {nbytes} bytes; allowed {limits.max_bytes}). Scale the picture down or "
        "save it as JPEG."
    )


def too_slow(limits: ImageLimits) -> RequestError:
    """Return the error for a picture whose decoding was stopped."""
    return RequestError(
        f"image: decoding takes too long (allowed {limits.max_seconds:g} s). Scale the picture down or send fewer "
        "frames."
    )


def too_much_memory(limits: ImageLimits) -> RequestError:
    """Return the error for a picture whose decoding ran out of memory."""
    return RequestError(
        f"image: decoding needs too much memory (allowed {limits.max_memory >> 20} MiB). Scale the picture down or "
        "save it in another format."
    )


def damaged(name: str, reason: str) -> RequestError:
    """Return the error for a file of a supported format, `name`, that cannot be decoded."""
    return RequestError(
        f"image: the {name} file is damaged or truncated ({reason}). Send it again, or save it again with an image "
        "program."
    )


def check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    """Raise RequestError for a frame of (width, height) without pixels, or with too many."""
    width, height = size
    if width < 1 or height < 1:
        raise RequestError(f"image: no pixels (got {width} x {height}; allowed at least 1 x 1). Send another picture.")
    if width * height > limits.max_pixels:
        raise RequestError(
            f"image: too many pixels (got {width} x {height}; allowed {in_millions(limits.max_pixels)}). Scale the "
            "picture down."
        )


def in_millions(pixels: int) -> str:
    """Return a number of pixels for a message."""
    return f"{pixels / 1e6:g} million"
