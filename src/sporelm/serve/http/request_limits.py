"""The middleware before every route: request ids, access control, and limits on headers and bodies."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import AsyncExitStack
from secrets import token_hex
from time import perf_counter
from typing import Any

from sporelm.serve.http.access_control import AccessControl
from sporelm.serve.http.api_errors import (
    CLOSING_STATUSES,
    RETRY_SECONDS,
    ApiError,
    anthropic_error_body,
    api_error_from,
    error_format_for,
)
from sporelm.serve.http.image_bytes import TextByteCounter
from sporelm.serve.http.request_log import log_request
from sporelm.serve.serve_config import ServeConfig

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_HEADER_LINES = 100
# Responses may not be framed by another site, nor be interpreted as another media type.
SAFETY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)


class ClientDisconnected(Exception):
    """The client has closed the connection."""


class RequestLimitsMiddleware:
    """An ASGI middleware. What a request opened (`resources` of its state) is closed when the request ends, for
    whatever reason."""

    def __init__(
        self,
        app: App,
        config: ServeConfig,
        access: AccessControl,
        on_response: Callable[[str, str, int], None],
        image_paths: Collection[str] = (),
    ) -> None:
        """
        on_response  gets the path of each request's route ("" for none), its method and its status
        image_paths  paths whose bodies may contain images
        """
        self.app = app
        self.image_paths = image_paths
        self.config = config
        self.access = access
        self.on_response = on_response
        self.body_bytes = 0  # of all requests in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._handle(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
        else:
            await self.app(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = perf_counter()
        headers = headers_of(scope)
        client_id = headers.get("x-request-id", "")
        request_id = client_id if REQUEST_ID.fullmatch(client_id) else token_hex(8)
        status = 0
        owner = ""
        # Anthropic's clients read the id in another header than OpenAI's.
        is_anthropic = error_format_for(scope["path"]) is anthropic_error_body
        id_names = (b"x-request-id", b"request-id") if is_anthropic else (b"x-request-id",)
        id_headers = [(name, request_id.encode()) for name in id_names]

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                missing = (header for header in SAFETY_HEADERS if header[0] not in present)
                message["headers"] = [*message["headers"], *id_headers, *missing]
            await send(message)

        resources = AsyncExitStack()
        try:
            async with resources:
                try:
                    self._check_head(scope)
                    key = self.access.check(scope["method"], scope["path"], headers)
                    owner = key.owner
                    scope.setdefault("state", {}).update(key=key, resources=resources, request_id=request_id)
                    await self.app(
                        scope, self._limit_body(scope["path"], headers, receive, resources), send_with_headers
                    )
                except Exception as error:
                    if isinstance(error, ClientDisconnected) or status:
                        raise
                    await send_error(api_error_from(error), scope["path"], send_with_headers)
        except ClientDisconnected:
            status = status or 499
        finally:
            self.on_response(getattr(scope.get("route"), "path", ""), scope["method"], status or 499)
            log_request(
                {
                    "request_id": request_id,
                    "method": scope["method"],
                    "path": scope["path"][:200],
                    "status": status or 499,
                    "seconds": round(perf_counter() - start, 4),
                    "key": owner,
                    "client": (scope.get("client") or ("",))[0],
                }
            )

    def _check_head(self, scope: Scope) -> None:
        """Raise ApiError for headers that are too many or too large, and unless there is exactly one Host header.

        Of two hosts a proxy could have checked the other (RFC 9112, 3.2).
        """
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        size += len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        if size > self.config.max_headers or len(scope["headers"]) > MAX_HEADER_LINES:
            raise ApiError(
                431,
                f"the headers have {size} bytes in {len(scope['headers'])} lines: at most {self.config.max_headers} "
                f"bytes (max_headers) in {MAX_HEADER_LINES} lines are allowed",
                code="headers_too_large",
            )
        num_hosts = sum(name == b"host" for name, _ in scope["headers"])
        if num_hosts > 1 or (num_hosts == 0 and scope["http_version"] == "1.1"):
            raise ApiError(400, f"the request has {num_hosts} Host headers: send exactly one", code="wrong_host")

    def _limit_body(self, path: str, headers: dict[str, str], receive: Receive, resources: AsyncExitStack) -> Receive:
        """Return `receive`, wrapped to raise ApiError for a body that is too large, arrives too slowly, or exceeds the
        memory for all bodies. Received bytes count until the request ends, since they are held until then."""
        takes_images = path in self.image_paths
        max_bytes = self.config.image_body_bytes if takes_images else self.config.max_body
        counter = TextByteCounter()
        uncounted: list[bytes] = []  # chunks of a body that is not yet larger than all its text may be
        seconds = self.config.body_seconds
        too_large = body_too_large(max_bytes, "max_image_body" if takes_images else "max_body")
        if headers.get("content-length", "").isdecimal() and int(headers["content-length"][:20]) > max_bytes:
            raise too_large
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        num_received = 0
        is_complete = False

        def release() -> None:
            self.body_bytes -= num_received

        resources.callback(release)

        async def receive_limited() -> Message:
            nonlocal num_received, is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, f"the body did not arrive within {seconds:g} s (body_seconds)") from None
            size = len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if num_received + size > max_bytes:
                raise too_large
            self._check_body_memory(size)
            num_received += size
            self.body_bytes += size
            if takes_images:
                uncounted.append(message.get("body", b""))
            if num_received > self.config.max_body:
                while uncounted:
                    if counter.add(uncounted.pop(0)) > self.config.max_body:
                        raise body_too_large(self.config.max_body, "max_body, without the data of images")
                    await asyncio.sleep(0)  # or the streams of others would wait for all chunks
            if is_complete:
                uncounted.clear()
            return message

        return receive_limited

    def _check_body_memory(self, size: int) -> None:
        """Raise ApiError if `size` more bytes exceed the memory for all bodies. The rest of the body is not read."""
        max_bytes = self.config.max_bodies_bytes
        if size and self.body_bytes + size > max_bytes:
            raise ApiError(
                503,
                f"the bodies of all requests together would have more than {max_bytes} bytes, which is the limit "
                "(max_bodies): try again later",
                "server_error",
                "bodies_too_large",
                {"retry-after": str(RETRY_SECONDS), "connection": "close"},
            )


def body_too_large(max_bytes: int, limit: str) -> ApiError:
    """Return the error for a body of more bytes than a limit."""
    return ApiError(
        413, f"the body has more than {max_bytes} bytes, which is the limit ({limit})", code="body_too_large"
    )


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers by their lower-case names. Of a repeated header the first counts, so that none can be slipped
    in behind another."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return headers


async def send_error(error: ApiError, path: str, send: Send) -> None:
    """Send an error response, in the format of the API at this path."""
    body = json.dumps(error_format_for(path)(error), ensure_ascii=False).encode("utf-8", "replace")
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    if error.status in CLOSING_STATUSES:
        headers["connection"] = "close"
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
