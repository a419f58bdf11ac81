"""Endpoint: a path, the type of its body, and the function that answers. `routes/` are lists of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sporelm.serve.http.api_call import LARGE_BYTES, ApiCall
from sporelm.serve.http.api_errors import (
    CLOSING_STATUSES,
    ApiError,
    ErrorFormat,
    api_error_from,
    openai_error_body,
)
from sporelm.serve.http.json_body import decode_body, json_response
from sporelm.serve.http.request_limits import ClientDisconnected, Message, Receive, Scope, Send

Handler = Callable[[ApiCall, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """One route. The handler gets the call and the body (None for a route without one), and returns a Response or a
    value that becomes JSON. Its docstring is the route's description.

    body               the type of the JSON body
    reply              the type of the JSON answer, for the description
    stream_media_type  the media type of a streamed answer, if the route has one
    error_format       how the route's API writes errors
    takes_images       whether its body may contain images, and so be larger
    alias_of           the path that this one is an alias of
    """

    method: str
    path: str
    handler: Handler
    body: type | None = None
    reply: Any = None
    stream_media_type: str | None = None
    error_format: ErrorFormat = openai_error_body
    tag: str = "OpenAI"
    takes_images: bool = False
    alias_of: str | None = None

    def alias(self, path: str) -> "Endpoint":
        """Return the same endpoint under another path."""
        return replace(self, path=path, alias_of=self.path)

    def route(self) -> Route:
        """Return the Starlette route."""

        async def endpoint(request: Request) -> "CancelOnDisconnect":
            return CancelOnDisconnect(self, request)

        return Route(self.path, endpoint, methods=[self.method])

    async def respond(self, request: Request) -> Response:
        """Return the response to a request; errors become error responses."""
        call: ApiCall | None = None
        try:
            call = ApiCall.from_request(request)
            body: Any = None
            if self.body is not None:
                data = await request.body()
                call.is_large = len(data) > LARGE_BYTES
                if issubclass(self.body, msgspec.Struct):
                    call.parameters = self.body.__struct_encode_fields__
                body = decode_body(data, self.body, request)
            try:
                async with call.before_deadline():
                    reply = await self.handler(call, body)
            except TimeoutError:
                raise call.timeout_error() from None
        except (ClientDisconnect, asyncio.CancelledError):
            raise
        except Exception as error:
            return self.error_response(api_error_from(error) if call is None else call.error_from(error))
        return reply if isinstance(reply, Response) else json_response(reply)

    def error_response(self, error: ApiError) -> Response:
        """Return an error in the format of this endpoint's API."""
        headers = dict(error.headers)
        if error.status in CLOSING_STATUSES:
            headers["connection"] = "close"
        return json_response(self.error_format(error), error.status, headers)


class CancelOnDisconnect(Response):
    """Makes and sends a response while it watches the connection: all work for it ends when the client disconnects."""

    def __init__(self, endpoint: Endpoint, request: Request) -> None:
        self.endpoint = endpoint
        self.request = request
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_body = asyncio.Event()  # set once the body is complete; then the connection only reports its end
        request = Request(scope, _watch_body(receive, has_body), send)

        async def answer() -> None:
            response = await self.endpoint.respond(request)
            await response(scope, receive, send)

        async def wait_for_disconnect() -> None:
            await has_body.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        if self.endpoint.body is None:
            has_body.set()
        work = asyncio.ensure_future(answer())
        watch = asyncio.ensure_future(wait_for_disconnect())
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnected("the client disconnected")
            await work
        except ClientDisconnect:
            raise ClientDisconnected("the client disconnected") from None
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)


def _watch_body(receive: Receive, has_body: asyncio.Event) -> Receive:
    """Return `receive`, wrapped to set `has_body` when the body is complete."""

    async def receive_and_watch() -> Message:
        message = await receive()
        if not message.get("more_body", False):
            has_body.set()
        return message

    return receive_and_watch
