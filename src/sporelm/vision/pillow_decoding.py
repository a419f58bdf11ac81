"""Decodes a picture with Pillow: five formats, within limits that are checked before pixels are allocated.

This module parses untrusted bytes. `ImageDecoder` runs it in an isolated process, so it imports neither numpy nor any
other part of the engine.
"""

import io
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from PIL import (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageChops,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    WebPImagePlugin,
)

from sporelm.errors import RequestError
from sporelm.vision.image_formats import detect_format
from sporelm.vision.image_limits import (
    ImageLimits,
    check_size,
    damaged,
    in_millions,
    too_many_bytes,
    too_much_memory,
    too_slow,
)
from sporelm.vision.png_check import has_all_rows

# The classes are called directly. `Image.open` would try every plugin that a program has registered, import all of
# them for WebP, and turn a JPEG with several pictures into one that reads at the file's own offsets (MPO).
_PLUGINS: dict[str, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "PNG": PngImagePlugin.PngImageFile,
    "JPEG": JpegImagePlugin.JpegImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
}
_ANIMATED = ("GIF", "WebP")
_SAMPLE_SCALES = {"1": 255, "L;2": 85, "L;4": 17}  # from a PNG's sample to Pillow's 8-bit value

# TIFF 6.0, tag Orientation, and EXIF 2.32, section 4.6.4: how to turn the stored pixels.
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_warnings_lock = Lock()  # warning filters are global to the process


@dataclass(frozen=True, eq=False)
class RawPicture:
    """A decoded picture, whose frames are bytes: rows of RGB triples, without padding.

    format           one of FORMATS
    width, height    of each frame, in pixels
    """

    format: str
    width: int
    height: int
    frames: list[bytes]


def decode_picture(data: bytes, limits: ImageLimits) -> RawPicture:
    """Decode a file: its only picture, the first one of an APNG, or the frames of an animated GIF or WebP, at most
    `limits.max_frames` of them, evenly spaced with the first and the last.

    EXIF orientation is applied, transparent pixels are laid over white, and every mode becomes 8-bit RGB. Frames have
    the size of the first one. Raises RequestError.
    """
    if len(data) > limits.max_bytes:
        raise too_many_bytes(len(data), limits)
    name = detect_format(data)
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged EXIF data, and of other parts that are not needed
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _decode(name, data, limits)
    except RequestError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise RequestError(
            f"image: too many pixels (allowed {in_millions(limits.max_pixels)}). Scale the picture down."
        ) from None
    except MemoryError:
        raise too_much_memory(limits) from None
    except Exception as error:  # Pillow's plugins raise many kinds for damaged files
        if "out of memory" in str(error):
            raise too_much_memory(limits) from None
        raise _damaged(name, error) from None


def _decode(name: str, data: bytes, limits: ImageLimits) -> RawPicture:
    end = time.thread_time() + limits.max_seconds
    if name == "WebP":
        if not WebPImagePlugin.SUPPORTED:
            raise RequestError("image: WebP is not supported by this installation of Pillow. Save it as PNG or JPEG.")
        # Check the size first: the decoder allocates the canvas twice when it is opened.
        check_size(read_webp_size(data), limits)
    with _PLUGINS[name](io.BytesIO(data)) as image:
        size = image.size
        check_size(size, limits)
        indices = [0]
        if name in _ANIMATED:
            indices = choose_frames(getattr(image, "n_frames", 1), limits.max_frames)
        if len(indices) * size[0] * size[1] > limits.max_total_pixels:
            raise RequestError(
                f"image: too many pixels in all frames (got {len(indices)} frames of {size[0]} x {size[1]}; allowed "
                f"{in_millions(limits.max_total_pixels)}). Scale the picture down or send fewer frames."
            )
        raw_mode = image.tile[0][3] if name == "PNG" and image.tile else ""
        transpose = None
        frames = []
        for index in range(indices[-1] + 1):
            if time.thread_time() > end:
                raise too_slow(limits)
            image.seek(index)
            check_size(image.size, limits)  # a frame of a GIF can enlarge the picture
            if index not in indices:
                continue
            image.load()
            if name == "PNG" and (image.info.get("interlace") or _is_last_row_empty(image)) and not has_all_rows(data):
                raise damaged(name, "its pixels end before the last row")
            if index == 0:
                transpose = read_transpose(image)
            frame = _crop(convert_to_rgb(image, raw_mode if isinstance(raw_mode, str) else ""), size)
            if transpose is not None:
                frame = frame.transpose(transpose)
            frames.append(frame.tobytes())
        return RawPicture(name, *frame.size, frames)


def _is_last_row_empty(image: Image.Image) -> bool:
    """Whether the last row has the value of pixels that were not written."""
    return not any(image.crop((0, image.height - 1, image.width, image.height)).tobytes())


def choose_frames(count: int, max_frames: int) -> list[int]:
    """Return the indices of at most `max_frames` of `count` frames: evenly spaced, with the first and the last one."""
    if count <= max_frames:
        return list(range(max(count, 1)))
    if max_frames <= 1:
        return [0]
    steps = max_frames - 1
    return [(2 * index * (count - 1) + steps) // (2 * steps) for index in range(max_frames)]


def convert_to_rgb(image: Image.Image, raw_mode: str = "") -> Image.Image:
    """Return an image of any mode as 8-bit RGB, over white where it is transparent. Of 16 bits the upper 8 are kept.

    `raw_mode` is how a PNG stores its samples, in Pillow's terms: it gives the unit of a transparent color. Raises
    RequestError for modes without a range of values.
    """
    if image.mode.startswith("I"):
        return _convert_16_bit(image)
    if image.mode == "F":
        raise RequestError(
            "image: a picture of floating-point values has no known range (got mode F; allowed 8 or 16 bits). Scale "
            "it to 0...255, and convert it to mode L."
        )
    if image.mode in ("1", "L", "RGB") and "transparency" in image.info:
        image = image.copy()  # a caller's image keeps its info
        image.info["transparency"] = _scale_transparency(image.info["transparency"], raw_mode)
    if image.mode == "La":
        image = image.convert("LA")
    if image.mode in ("CMYK", "YCbCr", "LAB", "HSV") or not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    colors = image.convert("RGBA")
    if colors.getchannel("A").getextrema() == (255, 255):
        return colors.convert("RGB")
    result = Image.new("RGB", colors.size, "white")
    result.paste(colors, mask=colors)
    return result


def _convert_16_bit(image: Image.Image) -> Image.Image:
    samples = image.tobytes("raw", "I;16B")
    high = Image.frombytes("L", image.size, samples[::2])
    result = high.convert("RGB")
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        low = Image.frombytes("L", image.size, samples[1::2])
        masks = [
            each.point([255 if value == byte else 0 for value in range(256)])
            for each, byte in ((high, transparent >> 8), (low, transparent & 255))
        ]
        result.paste("white", mask=ImageChops.darker(*masks))
    return result


def _scale_transparency(transparency: Any, raw_mode: str) -> Any:
    """Return the transparent color of a PNG in the unit of Pillow's 8-bit pixels; the file stores a raw sample."""
    if isinstance(transparency, tuple) and raw_mode == "RGB;16B":
        return tuple(value >> 8 for value in transparency)
    scale = _SAMPLE_SCALES.get(raw_mode, 1)
    return transparency * scale if isinstance(transparency, int) and transparency * scale <= 255 else transparency


def _crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.crop((0, 0, *size))


def read_transpose(image: Image.Image) -> Image.Transpose | None:
    """Return the transposition for the orientation in EXIF (or XMP) data; None if there is none or it is damaged."""
    try:
        return _TRANSPOSES.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # as browsers do: the pixels are valid
        return None


def read_webp_size(data: bytes) -> tuple[int, int]:
    """Return width and height of a WebP file from its header (RFC 9649, sections 2.5 to 2.7). Raises RequestError."""
    chunk = data[12:16]
    if chunk == b"VP8X" and len(data) >= 30:
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 " and len(data) >= 30 and data[23:26] == b"\x9d\x01\x2a":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    raise damaged("WebP", "invalid header")


def _damaged(name: str, error: Exception) -> RequestError:
    reason = " ".join(str(error).split())[:100] if isinstance(error, OSError | SyntaxError | ValueError) else ""
    return damaged(name, reason or type(error).__name__)
