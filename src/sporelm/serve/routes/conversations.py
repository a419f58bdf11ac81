"""/api/ui/...: the conversations of the web chat, for the key that a request bears.

Bodies are JSON; errors are {"error": {"message", "type", "param", "code"}}. What belongs to another key is not there:
404.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sporelm.errors import RequestError, shown
from sporelm.serve.conversation_form import BadConversation, TooMuch
from sporelm.serve.conversation_shapes import (
    ConversationBundle,
    ConversationChange,
    ConversationPage,
    ConversationSummary,
    Deleted,
    Imported,
    NewConversation,
    StoredConversation,
)
from sporelm.serve.conversations import ConversationNotFound, ConversationStore, VersionConflict, summary_of
from sporelm.serve.endpoint import Endpoint

Handler = Callable[[Request], Awaitable[Response]]

PATH = "/api/ui/conversations"
MOST_LISTED = 500
STATUS: list[tuple[type[RequestError], int, str]] = [
    (ConversationNotFound, 404, "not_found"),
    (VersionConflict, 409, "version_conflict"),
    (TooMuch, 413, "too_large"),
    (BadConversation, 400, "invalid_value"),
    (RequestError, 507, "not_written"),
]


def conversation_routes(store: ConversationStore, identity: Callable[[Request], str]) -> list[Route]:
    """The routes of a store. `identity` says which key a request bears: any text, the same for the same key."""
    handlers = _Handlers(store, identity)
    one = PATH + "/{id}"
    return [
        Route(PATH, _told(handlers.page), methods=["GET"]),
        Route(PATH, _told(handlers.create), methods=["POST"]),
        Route(one, _told(handlers.get), methods=["GET"]),
        Route(one, _told(handlers.change), methods=["PATCH"]),
        Route(one, _told(handlers.delete), methods=["DELETE"]),
        Route(one + "/export", _told(handlers.export), methods=["GET"]),
        Route("/api/ui/export", _told(handlers.export), methods=["GET"]),
        Route("/api/ui/import", _told(handlers.import_bundle), methods=["POST"]),
    ]


class _Handlers:
    """One handler for each route; the store, which waits for the disk, is called in a thread."""

    def __init__(self, store: ConversationStore, identity: Callable[[Request], str]) -> None:
        self.store, self.identity = store, identity

    async def page(self, request: Request) -> Response:
        """The key's conversations, the latest changed first: ?q=words&offset=0&limit=100."""
        query = request.query_params.get("q", "")
        if len(query) > 1_000:
            raise BadConversation(f"q has {len(query)} characters: at most 1000 are searched for")
        offset, limit = _number(request, "offset", 0, 1 << 31), _number(request, "limit", 100, MOST_LISTED)
        page = await run_in_threadpool(self.store.page, self.identity(request), query, offset, limit)
        return _json({"conversations": page.conversations, "total": page.total})

    async def create(self, request: Request) -> Response:
        """Keep a conversation."""
        value = await _body(request, self.store.limits.conversation_bytes)
        return _json(await run_in_threadpool(self.store.create, self.identity(request), value))

    async def get(self, request: Request) -> Response:
        """A conversation with its messages."""
        return _json(await run_in_threadpool(self.store.get, self.identity(request), request.path_params["id"]))

    async def change(self, request: Request) -> Response:
        """Change a conversation; 409 if it was changed since the version that is given."""
        value = await _body(request, self.store.limits.conversation_bytes)
        name = request.path_params["id"]
        return _json(summary_of(await run_in_threadpool(self.store.change, self.identity(request), name, value)))

    async def delete(self, request: Request) -> Response:
        """Delete a conversation."""
        await run_in_threadpool(self.store.delete, self.identity(request), request.path_params["id"])
        return _json({"deleted": request.path_params["id"]})

    async def export(self, request: Request) -> Response:
        """A file with a conversation, or with all."""
        name = request.path_params.get("id")
        pieces = await run_in_threadpool(self.store.export, self.identity(request), name)
        file = f"sporelm-{name or 'conversations'}.json"
        headers = {"content-disposition": f'attachment; filename="{file}"', "cache-control": "no-store"}
        body: AsyncIterator[str] = iterate_in_threadpool(pieces)
        return StreamingResponse(body, media_type="application/json", headers=headers)

    async def import_bundle(self, request: Request) -> Response:
        """Keep the conversations of an exported file, under new ids: all, or none."""
        value = await _body(request, self.store.limits.import_bytes)
        made = await run_in_threadpool(self.store.import_bundle, self.identity(request), value)
        return _json({"imported": [conversation["id"] for conversation in made]})


def conversation_endpoints() -> list[Endpoint]:
    """The routes as the description at /docs and /openapi.json tells of them."""
    one = PATH + "/{id}"

    def endpoint(method: str, path: str, handler: Any, reply: type, body: type | None = None) -> Endpoint:
        return Endpoint(method, path, handler, body=body, reply=reply, tag="Conversations")

    return [
        endpoint("GET", PATH, _Handlers.page, ConversationPage),
        endpoint("POST", PATH, _Handlers.create, StoredConversation, NewConversation),
        endpoint("GET", one, _Handlers.get, StoredConversation),
        endpoint("PATCH", one, _Handlers.change, ConversationSummary, ConversationChange),
        endpoint("DELETE", one, _Handlers.delete, Deleted),
        endpoint("GET", one + "/export", _Handlers.export, ConversationBundle),
        endpoint("GET", "/api/ui/export", _Handlers.export, ConversationBundle),
        endpoint("POST", "/api/ui/import", _Handlers.import_bundle, Imported, ConversationBundle),
    ]


def _told(handler: Handler) -> Handler:
    """The handler, its errors told as JSON."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestError as error:
            status, code = next((status, code) for kind, status, code in STATUS if isinstance(error, kind))
            told: dict[str, Any] = {"message": str(error), "type": "invalid_request_error", "param": None, "code": code}
            if isinstance(error, VersionConflict):
                told["version"] = error.version
            return _json({"error": told}, status)

    return endpoint


def _json(value: object, status: int = 200) -> Response:
    return JSONResponse(value, status, headers={"cache-control": "no-store"})


def _number(request: Request, name: str, default: int, most: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 12 and int(given) <= most):
        raise BadConversation(f"{name} is {shown(given)}: it must be a whole number up to {most}")
    return int(given)


async def _body(request: Request, most: int) -> object:
    """A request's JSON; no more than `most` bytes of it are ever held. Raises BadConversation, TooMuch."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise BadConversation("the body must be JSON: send the header content-type: application/json")
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > most:
                raise TooMuch(f"the body has more than {most} bytes: that is the most that is taken")
    except ClientDisconnect:
        raise BadConversation("the body ended early") from None
    try:
        return await run_in_threadpool(json.loads, bytes(data))
    except (ValueError, RecursionError) as error:
        raise BadConversation(f"the body is no JSON: {shown(str(error), 100)}") from None
