"""Pictures in messages: the image parts of every API become parts {"type": "image", "image": bytes, "path": str}.

The bytes are those of the file, undecoded; the path locates it in the request, for errors. A picture at a
remote URL stays a `RemoteImage` until `remote_images` has fetched it, so that parsing a request connects to nothing.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sporelm.errors import RequestError, safe_repr
from sporelm.vision.image_sources import decode_base64, media_type_of, read_data_uri

Part = dict[str, Any]
Content = str | list[Part]

MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")
ALIASES = {"image/jpg": "image/jpeg", "image/x-ms-bmp": "image/bmp"}  # of media types, which some clients send
IMAGE_ROLES = ("user", "tool")  # messages of these roles may contain pictures
NORMALIZED_PLACE = re.compile(r"message (\d+), part (\d+)(?=: )")  # prefix of errors, by index in `messages`
DATA_URL = re.compile(r"\s*data:", re.IGNORECASE)
REMOTE_URL = re.compile(r"https?://", re.IGNORECASE)


class RemoteImage(NamedTuple):
    """A picture that is still to be fetched."""

    url: str


def text_part(text: str) -> Part:
    """Return a part of text."""
    return {"type": "text", "text": text}


def image_part(image: bytes | RemoteImage, path: str) -> Part:
    """Return a part with a picture; `path` is its place in the request."""
    return {"type": "image", "image": image, "path": path}


def join_text(parts: list[Part]) -> Content:
    """Return the parts as one text if all are text, else as they are."""
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def has_images(messages: Sequence[Any]) -> bool:
    """Return whether any message contains a picture."""
    return bool(image_parts(messages))


def image_parts(messages: Sequence[Any]) -> list[Part]:
    """Return the image parts of all messages, in order."""
    return [
        part
        for message in messages
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, dict) and part.get("type") == "image"
    ]


def with_request_path(error: RequestError, messages: Sequence[Any]) -> RequestError:
    """Return an error about a picture with its path in the request instead of its index in `messages`."""
    match = NORMALIZED_PLACE.match(str(error))
    if type(error) is not RequestError or match is None:
        return error
    try:
        path = messages[int(match[1])]["content"][int(match[2])]["path"]
    except (LookupError, TypeError):
        return error
    return RequestError(f"{path}{str(error)[match.end() :]}")


def check_image_role(role: object, path: str) -> None:
    """Raise RequestError for a picture in a message of the system or of the assistant."""
    if role not in IMAGE_ROLES:
        raise RequestError(
            f"{path} is an image in a message of the role {safe_repr(role)}: only messages of the user and results of "
            "tools may contain images"
        )


def image_from_url(url: object, path: str) -> bytes | RemoteImage:
    """Return the picture of a data URL, or a remote one. Raises RequestError for another URL.

    `path` is the picture's place in the request, as in messages[0].content[1]; errors begin with it.
    """
    if not isinstance(url, str):
        raise RequestError(f"{path} has the image URL {safe_repr(url)}: it must be a string")
    if DATA_URL.match(url):
        try:
            media_type, image = media_type_of(url), read_data_uri(url)
        except RequestError as reason:
            raise RequestError(f"{path}: {reason}") from None
        check_media_type(media_type, path)
        return _check_not_empty(image, path)
    if REMOTE_URL.match(url):
        return RemoteImage(url)
    raise RequestError(
        f"{path} has the image URL {safe_repr(url)}: it must be a data URL, data:image/png;base64,..., or http(s)"
    )


def check_media_type(media_type: object, path: str) -> None:
    """Raise RequestError unless a media type is one of a supported picture format."""
    name = media_type.strip().lower() if isinstance(media_type, str) else media_type
    if not isinstance(name, str) or ALIASES.get(name, name) not in MEDIA_TYPES:
        raise RequestError(
            f"{path} has the media type {safe_repr(media_type)}: images must be {', '.join(MEDIA_TYPES)}"
        )


def image_from_base64(data: object, path: str) -> bytes:
    """Return decoded base64 in the form that `decode_base64` takes. Raises RequestError for invalid or empty data."""
    if not isinstance(data, str):
        raise RequestError(f"{path} has the image data {safe_repr(data)}: it must be a base64 string")
    try:
        image = decode_base64(data)
    except ValueError as reason:
        raise RequestError(f"{path} has image data that is not valid base64: {reason}") from None
    return _check_not_empty(image, path)


def _check_not_empty(image: bytes, path: str) -> bytes:
    if not image:
        raise RequestError(f"{path} has an image without data")
    return image


def messages_from_openai(messages: Sequence[Any]) -> list[Any]:
    """Return the messages of OpenAI's chat API with their image_url parts as image parts, in order.

    Anything else that is not valid stays for `check_messages` to refuse. Raises RequestError for a part of another
    type.
    """
    return [
        {**message, "content": _parts_from_openai(message, f"messages[{index}]")}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for index, message in enumerate(messages)
    ]


def _parts_from_openai(message: Mapping[str, Any], path: str) -> list[Any]:
    parts: list[Any] = []
    for index, part in enumerate(message["content"]):
        place = f"{path}.content[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "image_url":
            check_image_role(message.get("role"), place)
            image = part.get("image_url")
            detail = image.get("detail") if isinstance(image, Mapping) else part.get("detail")
            _check_detail(detail, place)
            url = image.get("url") if isinstance(image, Mapping) else image
            parts.append(image_part(image_from_url(url, place), place))
        elif kind == "text":
            # Nothing but the text: templates treat a part with a key such as "image" as a picture.
            parts.append({name: part[name] for name in ("type", "text") if name in part})
        elif isinstance(part, Mapping):
            raise RequestError(
                f"{place} is a part of type {safe_repr(kind)}: only 'text' and 'image_url' are supported"
            )
        else:
            parts.append(part)
    return parts


def _check_detail(detail: object, path: str) -> None:
    """Raise RequestError unless `detail` is a string or None. No effect: a model's files set its resolution."""
    if detail is not None and not isinstance(detail, str):
        raise RequestError(f"{path} has the detail {safe_repr(detail)}: it must be a string such as 'auto'")


def responses_image(part: Mapping[str, Any], path: str) -> Part:
    """Return the part of an `input_image` of OpenAI's responses API. Raises RequestError."""
    if part.get("file_id") is not None:
        raise RequestError(f"{path} has a file_id: this server stores no files; give image_url with a data URL")
    _check_detail(part.get("detail"), path)
    return image_part(image_from_url(part.get("image_url"), path), path)


def anthropic_image(block: Mapping[str, Any], path: str) -> Part:
    """Return the part of an `image` block of Anthropic's API, whose source is base64 or a URL. Raises RequestError."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    if isinstance(source, Mapping) and kind == "base64":
        check_media_type(source.get("media_type"), path)
        return image_part(image_from_base64(source.get("data"), path), path)
    if isinstance(source, Mapping) and kind == "url":
        return image_part(image_from_url(source.get("url"), path), path)
    raise RequestError(f"{path} has an image source of type {safe_repr(kind)}: it must be base64 or url")


def ollama_content(text: str, images: Sequence[Any] | None, path: str) -> Content:
    """Return the content of a message of Ollama's API: its pictures, base64 or data URLs, then its text.

    `path` is the place of the list of pictures. Raises RequestError.
    """
    if not images:
        return text
    parts = []
    for index, image in enumerate(images):
        place = f"{path}[{index}]"
        is_data_url = isinstance(image, str) and DATA_URL.match(image) is not None
        data = image_from_url(image, place) if is_data_url else image_from_base64(image, place)
        parts.append(image_part(data, place))
    return [*parts, text_part(text)] if text else parts
