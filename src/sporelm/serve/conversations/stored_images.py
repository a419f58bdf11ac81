"""The pictures of stored conversations: files beside the conversations of one API key, named by their hash.

Messages refer to a picture by its id, the SHA-256 of its bytes. A picture in several messages is stored once. It is
deleted with the last of them; one that was never used is deleted a day after its upload.
"""

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sporelm.serve.conversations.conversation_schema import IMAGE_ID, InvalidConversation, Json

MAX_UNUSED_SECONDS = 86400.0  # how long an upload may be without a message
SUFFIX_OF = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif", "image/bmp": "bmp"}
MEDIA_TYPE_OF = {suffix: media_type for media_type, suffix in SUFFIX_OF.items()}
IMAGE_FOLDER = "images"


class ImageMissing(InvalidConversation):
    """A message refers to a picture that is not stored."""


class ImageRef(NamedTuple):
    """A picture of a prompt whose bytes have not been read yet."""

    id: str


class StoredImage(NamedTuple):
    """A stored picture."""

    data: bytes
    media_type: str


def image_id(data: bytes) -> str:
    """Return the id of a picture: 64 hexadecimal digits."""
    return sha256(data).hexdigest()


def media_type_of(data: bytes) -> str | None:
    """Return the media type of a picture by its first bytes; None for an unsupported format."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/bmp" if data.startswith(b"BM") else None


def check_image(data: bytes) -> str:
    """Return the media type of a picture. Raises InvalidConversation."""
    media_type = media_type_of(data)
    if media_type is None:
        raise InvalidConversation("the body is not an image: it must be PNG, JPEG, WebP, GIF or BMP")
    return media_type


def image_ids(conversation: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of the pictures that a conversation's messages show."""
    return frozenset(image["id"] for message in conversation["messages"] for image in message.get("images", ()))


def with_image_bytes(messages: Iterable[Json], images: Mapping[str, bytes]) -> list[Json]:
    """Return messages with the bytes of their pictures in place of each `ImageRef`."""

    def filled(part: Json) -> Json:
        image = part.get("image")
        return part | {"image": images[image.id]} if isinstance(image, ImageRef) else part

    return [
        message | {"content": [filled(part) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


def referenced_ids(messages: Iterable[Json]) -> list[str]:
    """Return the id of each `ImageRef` of messages, in order, once each."""
    refs = [
        part["image"].id
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if isinstance(part.get("image"), ImageRef)
    ]
    return list(dict.fromkeys(refs))


def image_files(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the ids and files of the pictures in a folder of conversations; other files are ignored."""
    with suppress(FileNotFoundError), os.scandir(folder / IMAGE_FOLDER) as entries:
        for entry in entries:
            name, _, suffix = entry.name.partition(".")
            if suffix in MEDIA_TYPE_OF and IMAGE_ID.fullmatch(name) and entry.is_file(follow_symlinks=False):
                yield name, entry


def find_image(folder: Path, identity: str) -> Path | None:
    """Return the file of a picture, or None. An id that is not valid is not looked for."""
    if not IMAGE_ID.fullmatch(identity):
        return None
    paths = (folder / IMAGE_FOLDER / f"{identity}.{suffix}" for suffix in MEDIA_TYPE_OF)
    return next((path for path in paths if path.is_file()), None)


def new_image_path(folder: Path, data: bytes) -> Path:
    """Return the path at which to store a picture. Raises InvalidConversation for data in another format."""
    return folder / IMAGE_FOLDER / f"{image_id(data)}.{SUFFIX_OF[check_image(data)]}"


def delete_images(folder: Path, ids: Collection[str]) -> None:
    """Delete the pictures with these ids, if they are stored."""
    for identity in ids:
        path = find_image(folder, identity)
        if path is not None:
            with suppress(OSError):
                path.unlink()


def unused_ids(folder: Path, used: Collection[str]) -> list[str]:
    """Return the pictures that are not in use and were uploaded more than a day ago."""
    oldest = time.time() - MAX_UNUSED_SECONDS
    old = []
    for identity, entry in image_files(folder):
        with suppress(OSError):
            if identity not in used and entry.stat().st_mtime < oldest:
                old.append(identity)
    return old
