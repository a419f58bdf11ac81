"""Pictures in a conversation: held as encoded files, and stored beside the messages in session files."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.text.chat_templates.chat_messages import IMAGE
from sporelm.vision.image_sources import check_picture_list, load_frames, read_image_bytes

TEXT = "text"  # the type of text parts
HASH = "sha256"  # the key in session files in place of a picture's bytes


def read_pictures(images: Any) -> list[bytes]:
    """Return pictures as bytes of files: those of files unchanged, all others as PNG. A list of frames becomes several.

    images   paths, bytes, data URIs, PIL images, uint8 arrays [height, width, 3], or lists of frames

    Raises RequestError for another value, and for a file that cannot be read. Files are not decoded.
    """
    found = list[bytes]()
    for image in check_picture_list(images):
        if isinstance(image, str | Path | bytes | bytearray | memoryview):
            found.append(read_image_bytes(image, allow_paths=True))
        else:
            found += [encode_png(frame) for frame in load_frames(image)]
    return found


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels, uint8 [height, width, 3], as the bytes of a PNG file."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def make_content(text: str, pictures: Sequence[bytes]) -> str | list[dict[str, Any]]:
    """Return the content of a message: the text, or a list of parts with the pictures first."""
    if not pictures:
        return text
    return [*({"type": IMAGE, IMAGE: data} for data in pictures), *([{"type": TEXT, TEXT: text}] if text else [])]


def text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(part[TEXT] for part in content if part.get("type") == TEXT)


def pictures_of(content: str | Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return the pictures of a message's content."""
    return [] if isinstance(content, str) else [part[IMAGE] for part in content if IMAGE in part]


def detach_pictures(messages: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return messages that JSON can hold, with hashes in place of pictures, and the distinct pictures."""
    pictures: dict[str, bytes] = {}

    def detach(part: Mapping[str, Any]) -> dict[str, Any]:
        if IMAGE not in part:
            return dict(part)
        digest = sha256(part[IMAGE]).hexdigest()
        pictures[digest] = part[IMAGE]
        return {"type": IMAGE, HASH: digest}

    detached = []
    for message in messages:
        content = message["content"]
        detached.append({**message, "content": content if isinstance(content, str) else [*map(detach, content)]})
    return detached, list(pictures.values())


def attach_pictures(messages: Iterable[Mapping[str, Any]], pictures: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the messages that `detach_pictures` was given.

    Raises AttributeError, KeyError, TypeError or ValueError for messages of another form, or without their pictures.
    """
    by_hash = {sha256(data).hexdigest(): data for data in pictures}

    def attach(part: Mapping[str, Any]) -> dict[str, Any]:
        if part["type"] == IMAGE:
            return {"type": IMAGE, IMAGE: by_hash[part[HASH]]}
        if part["type"] != TEXT:
            raise ValueError("a part is a picture or a text")
        part[TEXT].encode()  # must be a string without lone surrogates
        return {"type": TEXT, TEXT: part[TEXT]}

    attached = []
    for message in messages:
        message["role"].encode()
        content = message["content"]
        if isinstance(content, list):
            content = [attach(part) for part in content]
        else:
            content.encode()
        attached.append({**message, "content": content})
    return attached
