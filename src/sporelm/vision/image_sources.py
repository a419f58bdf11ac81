"""Reads pictures from the types that callers pass: bytes, paths, data URIs, PIL images, arrays, lists of frames."""

import binascii
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import RequestError, safe_repr
from sporelm.vision.image_limits import ImageLimits, check_size, too_many_bytes

if TYPE_CHECKING:
    from PIL import Image

    from sporelm.vision.image_decoding import ImageDecoder

_DATA_URI_HEAD = re.compile(r"\s*data:([^,#]*),", re.IGNORECASE)
_BASE64 = re.compile(r";\x20*base64\x20*$", re.IGNORECASE)
_WEB_ADDRESS = re.compile(r"\s*(https?):", re.IGNORECASE)
_OTHER_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SPACES = "\t\n\f\r "
PIECE_CHARACTERS = 1 << 18  # of base64, a multiple of four
ALLOWED_SOURCES = "bytes, a path, a data URI, a PIL image, a uint8 array [height, width, 3] or a list of these"


def media_type_of(uri: str) -> str:
    """Return the media type of a `data:` URI without its parameters, such as "image/png"; "" if it names none.

    Raises RequestError as `read_data_uri` does.
    """
    return _parse_head(uri)[1].partition(";")[0].strip().lower()


def read_data_uri(uri: str, limits: ImageLimits | None = None) -> bytes:
    """Return the bytes of a `data:` URI as browsers do (WHATWG Fetch, "data: URLs"; Infra, "forgiving-base64 decode"):
    padding may be absent, whitespace is skipped, and a fragment is not part of the data. The media type is ignored:
    the format is detected from the bytes.

    Raises RequestError for a malformed URI, an address of another kind, and more than `limits.max_bytes` bytes, which
    are counted before they are decoded.
    """
    limits = limits or ImageLimits()
    begin, media_type = _parse_head(uri)
    fragment = uri.find("#", begin)
    body = uri[begin : fragment if fragment >= 0 else None].strip()
    is_base64 = _BASE64.search(media_type) is not None
    per_byte = (4 / 3 if is_base64 else 1.0) * (3.0 if "%" in body else 1.0)  # characters, at most
    most = limits.max_bytes * per_byte + 4
    if len(body) > most and len(body) - _count_spaces(body) > most:
        raise too_many_bytes(f"about {round(len(body) / per_byte)}", limits)
    data: str | bytes = unquote_to_bytes(body) if "%" in body or not is_base64 else body
    if is_base64:
        try:
            data = decode_base64(data)
        except ValueError as error:
            raise _malformed(str(error)) from None
    assert isinstance(data, bytes)
    if len(data) > limits.max_bytes:
        raise too_many_bytes(len(data), limits)
    return data


def decode_base64(data: str | bytes) -> bytes:
    """Return decoded base64, with or without padding and whitespace (WHATWG Infra, "forgiving-base64 decode").

    It is decoded in pieces: decoding holds the interpreter's lock, which an engine may need meanwhile. Raises
    ValueError with the reason.
    """
    if isinstance(data, str):
        try:
            data = data.encode("ascii")
        except UnicodeEncodeError:
            raise ValueError("a character that base64 does not have") from None
    spaces = _SPACES.encode()
    if any(space in data for space in spaces):
        data = b"".join(piece.translate(None, spaces) for piece in _cut(data))
    if len(data) % 4 == 0 and data.endswith(b"="):
        data = data[: -2 if data.endswith(b"==") else -1]
    if len(data) % 4 == 1:
        raise ValueError(f"its length, {len(data)} characters without padding, cannot be base64")
    if b"=" in data:
        raise ValueError("padding before the end")
    padding = b"=" * (-len(data) % 4)
    try:
        decoded = [binascii.a2b_base64(piece, strict_mode=True) for piece in _cut(data + padding)]
    except binascii.Error:
        raise ValueError("a character that base64 does not have") from None
    return b"".join(decoded)


def _cut(data: bytes) -> Iterator[bytes]:
    return (data[start : start + PIECE_CHARACTERS] for start in range(0, len(data), PIECE_CHARACTERS))


def _parse_head(uri: str) -> tuple[int, str]:
    """Return the position of a `data:` URI's data, and the media type before it, with its parameters. Raises
    RequestError."""
    head = _DATA_URI_HEAD.match(uri)
    if head is None:
        raise _refuse_address(uri.strip())
    return head.end(), head[1]


def read_image_file(path: "str | Path", limits: ImageLimits | None = None) -> bytes:
    """Return the bytes of a file. Raises RequestError if it cannot be read or has more than `limits.max_bytes`."""
    limits = limits or ImageLimits()
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(limits.max_bytes + 1)  # a device has no size
    except (OSError, ValueError, RuntimeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RequestError(f"image: cannot read {safe_repr(str(path), 200)}: {reason}. Check the path.") from None
    if len(data) > limits.max_bytes:
        raise too_many_bytes(f"more than {limits.max_bytes}", limits)
    return data


def read_image_bytes(value: Any, limits: ImageLimits | None = None, *, allow_paths: bool = False) -> bytes:
    """Return the undecoded bytes of a picture given as bytes, `data:` URI or `Path`; with `allow_paths`, a string may
    be a path too. Do not allow it for untrusted strings: they could read any file of this machine.

    Raises RequestError as `read_data_uri` and `read_image_file` do, and for an address of another kind.
    """
    limits = limits or ImageLimits()
    if isinstance(value, bytes | bytearray | memoryview):
        data = value if isinstance(value, bytes) else bytes(value)
        if len(data) > limits.max_bytes:
            raise too_many_bytes(len(data), limits)
        return data
    if isinstance(value, Path):
        return read_image_file(value, limits)
    if not isinstance(value, str):
        raise RequestError(
            f"image: not a picture (got {safe_repr(value)}; allowed {ALLOWED_SOURCES}). Give one of these."
        )
    if allow_paths and not is_address(value):
        return read_image_file(value, limits)
    return read_data_uri(value, limits)


def check_picture_list(images: Any) -> Sequence[Any]:
    """Return a list of pictures as it is. Raises RequestError for any other value: a string, an array or a picture by
    itself would be taken apart."""
    if not isinstance(images, list | tuple):
        raise RequestError(f"images: not a list (got {safe_repr(images)}). Give a list of pictures.")
    return images


def load_frames(
    value: Any, limits: ImageLimits | None = None, decoder: "ImageDecoder | None" = None
) -> tuple[NDArray[np.uint8], ...]:
    """Return the frames of a picture given by the user of this process, uint8 [height, width, 3] RGB each.

    value     bytes of a file, a path, a data URI, a PIL image (its current frame), a uint8 array [height, width, 3],
              [height, width, 4] with alpha, [height, width], or [frames, height, width, 3], or a list of any of these
    decoder   decodes files; None: in this process

    A file's animation has at most `limits.max_frames` frames; a longer list is refused. Alpha is laid over white, and
    the EXIF orientation of files and PIL images applied. Raises RequestError.
    """
    from sporelm.vision.image_decoding import ImageDecoder

    limits = limits or (decoder.limits if decoder is not None else ImageLimits())
    decoder = decoder or ImageDecoder(limits, isolated=False)
    is_list = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 4)
    values: Sequence[Any] = value if is_list else [value]
    if not len(values):
        raise RequestError(f"image: no frames (got {safe_repr(value)}; allowed {ALLOWED_SOURCES}). Give at least one.")
    if len(values) > limits.max_frames > 0:
        raise RequestError(
            f"image: too many frames (got {len(values)}; allowed {limits.max_frames}). Choose some of them."
        )
    frames = [frame for each in values for frame in _load(each, limits, decoder, is_list=is_list)]
    total = sum(frame.shape[0] * frame.shape[1] for frame in frames)
    if total > limits.max_total_pixels:
        raise RequestError(
            f"image: too many pixels in all frames (got {total}; allowed {limits.max_total_pixels}). Scale them down "
            "or give fewer."
        )
    return tuple(frames)


def _load(value: Any, limits: ImageLimits, decoder: "ImageDecoder", *, is_list: bool) -> tuple[NDArray[np.uint8], ...]:
    from PIL import Image

    if isinstance(value, Image.Image):
        return (_convert_image(value, limits),)
    if isinstance(value, np.ndarray):
        return (_convert_array(value, limits),)
    if hasattr(value, "__array__"):
        raise RequestError(
            f"image: not a numpy array (got a {type(value).__name__}). Convert it to a uint8 array [height, width, 3]."
        )
    if is_list and isinstance(value, int | float | list | tuple):
        raise RequestError(
            f"image: not a frame (got {safe_repr(value)}; allowed {ALLOWED_SOURCES}). Use numpy.array(...)."
        )
    frames = decoder.decode(read_image_bytes(value, limits, allow_paths=True)).frames
    return frames[:1] if is_list else frames  # an animation in a list counts as one frame


def _convert_image(image: "Image.Image", limits: ImageLimits) -> NDArray[np.uint8]:
    """Return the current frame of a PIL image as [height, width, 3]. Raises RequestError."""
    from sporelm.vision.pillow_decoding import convert_to_rgb, read_transpose

    check_size(image.size, limits)
    try:
        result = convert_to_rgb(image)
        transpose = read_transpose(image)
        if transpose is not None:
            result = result.transpose(transpose)
    except (OSError, ValueError, SyntaxError) as error:
        raise RequestError(
            f"image: cannot convert a PIL image of mode {image.mode} to RGB ({error}). Convert it with "
            'image.convert("RGB").'
        ) from None
    return np.asarray(result)


def _convert_array(array: "NDArray[Any]", limits: ImageLimits) -> NDArray[np.uint8]:
    """Return an array as [height, width, 3] uint8. Raises RequestError."""
    if array.dtype != np.uint8:
        remedy = "Use array.astype(numpy.uint8) if its values are 0...255."
        if array.dtype.kind == "f":
            remedy = "Use (array * 255).round().astype(numpy.uint8) if its values are 0...1."
        raise RequestError(f"image: wrong type of values (got {array.dtype}; allowed uint8). {remedy}")
    shape = array.shape
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)) or 0 in shape:
        remedy = "Give [height, width, 3], [height, width, 4] or [height, width]."
        if len(shape) == 3 and shape[0] in (1, 3, 4):
            remedy = "Move the channels last: array.transpose(1, 2, 0)."
        allowed = "[height, width] with 1, 3 or 4 channels last"
        raise RequestError(f"image: wrong shape of an array (got {list(shape)}; allowed {allowed}). {remedy}")
    check_size((shape[1], shape[0]), limits)
    if len(shape) == 3 and shape[2] == 3:
        return array
    if len(shape) == 2 or shape[2] == 1:
        return np.repeat(array.reshape(*shape[:2], 1), 3, axis=2)
    return _lay_over_white(array)


def _lay_over_white(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return [height, width, 4] as [height, width, 3], rounded as Pillow rounds."""
    from PIL import Image

    from sporelm.vision.pillow_decoding import convert_to_rgb

    return np.asarray(convert_to_rgb(Image.fromarray(array)))


def _count_spaces(text: str) -> int:
    return sum(map(text.count, _SPACES))


def is_address(text: str) -> bool:
    """Return whether a string is a data URI or another address, not a path."""
    head = text.lstrip()[:16].lower()
    return head.startswith("data:") or bool(_WEB_ADDRESS.match(text) or _OTHER_ADDRESS.match(text.lstrip()))


def _refuse_address(uri: str) -> RequestError:
    if _WEB_ADDRESS.match(uri):
        return RequestError(
            f"image: addresses of other servers are not opened (got {safe_repr(uri, 100)}; allowed data URIs). "
            "Download the picture, and give its bytes or data:image/png;base64,..."
        )
    other = _OTHER_ADDRESS.match(uri)
    if other is not None:
        return RequestError(
            f"image: {other[1]}: addresses are not supported (got {safe_repr(uri, 100)}). Send the picture as "
            "data:image/png;base64,..."
        )
    if uri[:5].lower() == "data:":
        return _malformed("it has no comma before the data")
    return RequestError(
        f"image: not an address of a picture (got {safe_repr(uri)}; allowed data URIs). Send it as "
        "data:image/png;base64,..."
    )


def _malformed(problem: str) -> RequestError:
    return RequestError(
        f"image: malformed data URI ({problem}). Send data:image/png;base64, followed by the file in base64."
    )
