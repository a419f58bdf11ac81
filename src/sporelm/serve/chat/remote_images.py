"""Pictures at remote URLs, fetched before a chat is rendered, from the hosts that the operator allows."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError, safe_repr
from sporelm.serve.chat.image_parts import Part, RemoteImage, image_part, image_parts
from sporelm.serve.http.api_call import ApiCall
from sporelm.vision.image_fetching import ImageFetcher

MAX_REMOTE_IMAGES = 16  # of one request
MAX_FETCHES = 4  # of one request at a time
FETCH_SECONDS = 10.0  # for one picture


async def fetch_remote_images(call: ApiCall, messages: Sequence[Any], *, can_see: bool) -> Sequence[Any]:
    """Return the messages with the bytes of their remote pictures; unchanged if the model cannot see, which rendering
    refuses.

    Raises RequestError, which names the picture: if no host is allowed, and as `ImageFetcher.fetch`.
    """
    remote = [part for part in image_parts(messages) if isinstance(part["image"], RemoteImage)]
    if not remote:
        return messages
    config = call.server.config
    if not config.allow_image_hosts:
        raise RequestError(
            f"{remote[0]['path']} is at {safe_repr(remote[0]['image'].url)}: this server fetches no remote images. "
            "Send the data of the image, or start the server with --allow-image-host NAME"
        )
    if not can_see:
        return messages
    if len(remote) > MAX_REMOTE_IMAGES:
        raise RequestError(
            f"{remote[MAX_REMOTE_IMAGES]['path']} is one remote image too many (got {len(remote)}; allowed "
            f"{MAX_REMOTE_IMAGES}). Send the data of the images"
        )
    fetcher = ImageFetcher(config.allow_image_hosts, config.image_body_bytes, FETCH_SECONDS)
    places = asyncio.Semaphore(MAX_FETCHES)

    async def fetch(url: str, path: str) -> bytes:
        async with places:
            try:
                return await asyncio.to_thread(fetcher.fetch, url)
            except RequestError as reason:
                raise RequestError(f"{path}: {reason}") from None

    path_of = {part["image"].url: part["path"] for part in reversed(remote)}  # the first one of each URL
    fetched = await asyncio.gather(*(fetch(url, path) for url, path in path_of.items()))
    images = dict(zip(path_of, fetched, strict=True))
    num_bytes = sum(map(len, images.values()))
    if num_bytes > config.image_body_bytes:
        raise RequestError(
            f"{remote[0]['path']} and the other remote images have {num_bytes} bytes: at most "
            f"{config.image_body_bytes} are read for one request (max_image_body)"
        )

    def with_bytes(part: Part) -> Part:
        image = part.get("image") if isinstance(part, Mapping) else None
        return image_part(images[image.url], part["path"]) if isinstance(image, RemoteImage) else part

    return [
        {**message, "content": [with_bytes(part) for part in message["content"]]}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
