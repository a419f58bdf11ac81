"""Pictures at remote URLs, fetched before a chat is rendered, from the hosts that the operator allows."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError, safe_repr
from sporelm.serve.chat.image_parts import Part, RemoteImage, image_part, image_parts
from sporelm.serve.http.api_call import ApiCall
from sporelm.vision.image_fetching import ImageFetcher
from sporelm.vision.image_limits import ImageLimits

MAX_REMOTE_IMAGES = 16  # of one request
MAX_FETCHES = 4  # of one request at a time
FETCH_SECONDS = 10.0  # for one picture


async def fetch_remote_images(call: ApiCall, messages: Sequence[Any], *, can_see: bool) -> Sequence[Any]:
    """Return the messages with the bytes of their remote pictures; unchanged if the model takes no images, which
    rendering rejects.

    Remote and inline pictures together are limited to `image_body_bytes`. Raises RequestError, which names the picture,
    if no host is allowed, and as `ImageFetcher.fetch` does.
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
    sent_bytes = sum(len(part["image"]) for part in image_parts(messages) if isinstance(part["image"], bytes))
    max_total_bytes = max(0, config.image_body_bytes - sent_bytes)
    max_bytes = min(ImageLimits().max_bytes, max_total_bytes)
    fetcher = ImageFetcher(config.allow_image_hosts, max_bytes, FETCH_SECONDS, max_total_bytes)
    places = asyncio.Semaphore(MAX_FETCHES)
    loop = asyncio.get_running_loop()

    async def fetch(url: str, path: str) -> bytes:
        async with places:
            try:
                return await loop.run_in_executor(call.server.fetch_threads, fetcher.fetch, url)
            except RequestError as reason:
                raise RequestError(f"{path}: {reason}") from None

    path_of = dict[str, str]()  # of the first part with each URL
    for part in remote:
        path_of.setdefault(part["image"].url, part["path"])
    tasks = [asyncio.ensure_future(fetch(url, path)) for url, path in path_of.items()]
    try:
        images = dict(zip(path_of, await asyncio.gather(*tasks), strict=True))
    finally:
        for task in tasks:  # after an error, start no more fetches
            task.cancel()

    def with_bytes(part: Part) -> Part:
        image = part.get("image") if isinstance(part, Mapping) else None
        return image_part(images[image.url], part["path"]) if isinstance(image, RemoteImage) else part

    return [
        {**message, "content": [with_bytes(part) for part in message["content"]]}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
