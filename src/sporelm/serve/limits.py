"""What stands before every route: a number for each request, who may ask, how much may be sent and how slowly."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from secrets import token_hex
from time import perf_counter
from typing import Any

from sporelm.serve import logs
from sporelm.serve.access import Access
from sporelm.serve.config import ServeConfig
from sporelm.serve.failures import ENDING, RETRY_SECONDS, Refusal, anthropic_shape, refusal_of, shape_for

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MOST_HEADERS = 100
# No page that we serve may be put into another site's frame, load anything from elsewhere, or be taken for what it is
# not.
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)


class Gone(Exception):
    """The client has left."""


class Limits:
    """An ASGI middleware. What a request opened (`opened` of its state) is closed when it ends, however it ends."""

    def __init__(self, app: App, config: ServeConfig, access: Access, counted: Callable[[str, str, int], None]) -> None:
        """`counted` is told of each request: its route's path ("" where it has none), its method, its status."""
        self.app, self.config, self.access, self.counted = app, config, access, counted
        self.held = 0  # bytes of the bodies of all requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
        else:
            await self.app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, headers = perf_counter(), headers_of(scope)
        given = headers.get("x-request-id", "")
        number = given if REQUEST_ID.fullmatch(given) else token_hex(8)
        status, owner = 0, ""
        # Anthropic's clients look for another name of it than OpenAI's.
        names = (b"x-request-id", b"request-id") if shape_for(scope["path"]) is anthropic_shape else (b"x-request-id",)
        numbers = [(name, number.encode()) for name in names]

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                there = {name.lower() for name, _ in message["headers"]}
                safe = (header for header in SAFE_HEADERS if header[0] not in there)
                message["headers"] = [*message["headers"], *numbers, *safe]
            await send(message)

        opened = AsyncExitStack()
        try:
            async with opened:
                try:
                    self._check_head(scope)
                    key = self.access.check(scope["method"], scope["path"], headers)
                    owner = key.owner
                    scope.setdefault("state", {}).update(key=key, opened=opened, request_id=number)
                    await self.app(scope, self._limited(headers, receive, opened), numbered)
                except Exception as error:
                    if isinstance(error, Gone) or status:
                        raise
                    await answer_refusal(refusal_of(error), scope["path"], numbered)
        except Gone:
            status = status or 499
        finally:
            self.counted(getattr(scope.get("route"), "path", ""), scope["method"], status or 499)
            logs.asked(
                {
                    "request_id": number,
                    "method": scope["method"],
                    "path": scope["path"][:200],
                    "status": status or 499,
                    "seconds": round(perf_counter() - began, 4),
                    "key": owner,
                    "client": (scope.get("client") or ("",))[0],
                }
            )

    def _check_head(self, scope: Scope) -> None:
        """Raise Refusal for headers that are too many or too large, or do not say once whom they ask: of two hosts a
        proxy could have looked at the other (RFC 9112, 3.2)."""
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        size += len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        if size > self.config.max_headers or len(scope["headers"]) > MOST_HEADERS:
            raise Refusal(
                431,
                f"the headers have {size} bytes in {len(scope['headers'])} lines: at most {self.config.max_headers} "
                f"bytes (max_headers) in {MOST_HEADERS} lines are taken",
                code="headers_too_large",
            )
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        if hosts > 1 or (hosts == 0 and scope["http_version"] == "1.1"):
            raise Refusal(400, f"a request has one Host header, and this one {hosts}", code="wrong_host")

    def _limited(self, headers: dict[str, str], receive: Receive, opened: AsyncExitStack) -> Receive:
        """`receive`, which raises Refusal for a body that is too large or comes too slowly, or has no room beside those
        of others. What has come of it counts until the request ends: until then it is held."""
        most, seconds = self.config.max_body, self.config.body_seconds
        too_large = Refusal(
            413, f"the body has more than {most} bytes, which is the limit (max_body)", code="body_too_large"
        )
        if headers.get("content-length", "").isdecimal() and int(headers["content-length"][:20]) > most:
            raise too_large
        loop, kept, ended = asyncio.get_running_loop(), 0, False
        until = loop.time() + seconds

        def give_back() -> None:
            self.held -= kept

        opened.callback(give_back)

        async def limited() -> Message:
            nonlocal kept, ended
            if ended:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Refusal(408, f"the body did not come within {seconds:g} s (body_seconds)") from None
            size, ended = len(message.get("body", b"")), not message.get("more_body", False)
            if kept + size > most:
                raise too_large
            self._check_room(size)
            kept += size
            self.held += size
            return message

        return limited

    def _check_room(self, size: int) -> None:
        """Raise Refusal if so many bytes more of a body cannot be held beside those of others. What is still on its way
        is not read."""
        most = self.config.all_bodies
        if size and self.held + size > most:
            raise Refusal(
                503,
                f"the bodies of all requests together would have more than {most} bytes, which is the limit "
                "(max_bodies): try again later",
                "server_error",
                "bodies_too_large",
                {"retry-after": str(RETRY_SECONDS), "connection": "close"},
            )


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers by their names in small letters; of one that is there twice the first, so that none can be slipped
    in behind another."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found


async def answer_refusal(refusal: Refusal, path: str, send: Send) -> None:
    """Answer with an error, in the shape that is usual at this path."""
    body = json.dumps(shape_for(path)(refusal), ensure_ascii=False).encode("utf-8", "replace")
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    if refusal.status in ENDING:
        headers["connection"] = "close"
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
