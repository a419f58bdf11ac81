"""/api/ui/...: the conversations of the web chat, for the API key of a request.

Bodies are JSON; errors are {"error": {"message", "type", "param", "code"}}. Conversations of another key do not exist:
404.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sporelm.errors import RequestError, safe_repr
from sporelm.serve.conversations.answer_job import AnswerRefused, AnswerSource
from sporelm.serve.conversations.answer_jobs import AnswerJobs
from sporelm.serve.conversations.conversation_schema import InvalidConversation, TooLarge
from sporelm.serve.conversations.conversation_store import ConversationNotFound, VersionConflict, summary_of
from sporelm.serve.conversations.conversation_types import (
    AnswerReply,
    AnswerStopped,
    ConversationChange,
    ConversationExport,
    ConversationList,
    ConversationReply,
    ConversationSummary,
    DeleteReply,
    ImageReply,
    ImportReply,
    NewAnswer,
    NewConversation,
    StoredConversation,
)
from sporelm.serve.conversations.stored_images import ImageMissing, media_type_of
from sporelm.serve.http.api_errors import RETRY_SECONDS, ApiError, openai_error_body
from sporelm.serve.http.endpoint import Endpoint

Handler = Callable[[Request], Awaitable[Response]]

PATH = "/api/ui/conversations"
IMAGE_PATH = "/api/ui/images"
IMPORT_PATH = "/api/ui/import"
IMAGE_HEADERS = {  # a picture that a browser opens by itself is shown, and nothing in it is run
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}
MAX_LISTED = 500
MAX_ANSWER_REQUEST_BYTES = 64 << 10
STATUS: list[tuple[type[RequestError], int, str]] = [
    (ConversationNotFound, 404, "not_found"),
    (VersionConflict, 409, "version_conflict"),
    (TooLarge, 413, "too_large"),
    (ImageMissing, 400, "image_missing"),
    (InvalidConversation, 400, "invalid_value"),
    (RequestError, 507, "not_written"),
]


def conversation_routes(
    jobs: AnswerJobs, owner_of: Callable[[Request], str], source_of: Callable[[Request], AnswerSource]
) -> list[Route]:
    """Return the routes of a store and of the answers that are written into it.

    owner_of   returns the name of a request's API key
    source_of  returns the generator of the answers to a request
    """
    handlers = _Handlers(jobs, owner_of, source_of)
    one = PATH + "/{id}"
    routes: list[tuple[str, str, Handler]] = [
        ("GET", PATH, handlers.page),
        ("POST", PATH, handlers.create),
        ("GET", one, handlers.get),
        ("PATCH", one, handlers.change),
        ("DELETE", one, handlers.delete),
        ("POST", one + "/answers", handlers.answer),
        ("DELETE", one + "/answers/{answer}", handlers.stop),
        ("GET", one + "/events", handlers.events),
        ("GET", one + "/export", handlers.export),
        ("GET", "/api/ui/export", handlers.export),
        ("POST", IMPORT_PATH, handlers.import_all),
        ("POST", IMAGE_PATH, handlers.add_image),
        ("GET", IMAGE_PATH + "/{image}", handlers.image),
    ]
    return [Route(path, _with_json_errors(handler), methods=[method]) for method, path, handler in routes]


class _Handlers:
    """One handler for each route. The store, which waits for the disk, is called in a thread."""

    def __init__(
        self, jobs: AnswerJobs, owner_of: Callable[[Request], str], source_of: Callable[[Request], AnswerSource]
    ) -> None:
        self.jobs = jobs
        self.store = jobs.store
        self.owner_of = owner_of
        self.source_of = source_of

    async def page(self, request: Request) -> Response:
        """The key's conversations, the latest changed first: ?q=words&offset=0&limit=100."""
        query = request.query_params.get("q", "")
        if len(query) > 1_000:
            raise InvalidConversation(f"q has {len(query)} characters: at most 1000 are allowed", "q")
        offset = _number(request, "offset", 0, 1 << 31)
        limit = _number(request, "limit", 100, MAX_LISTED)
        page = await run_in_threadpool(self.store.page, self.owner_of(request), query, offset, limit)
        return _json({"conversations": page.conversations, "total": page.total})

    async def create(self, request: Request) -> Response:
        """Store a conversation."""
        value = await _body(request, self.store.limits.conversation_bytes)
        return _json(await run_in_threadpool(self.store.create, self.owner_of(request), value))

    async def get(self, request: Request) -> Response:
        """A conversation with its messages; `answering` is the id of the one that is being written, if any."""
        conversation, job = await self.jobs.conversation(self.owner_of(request), request.path_params["id"])
        if job is not None:
            messages = [job.message if each["id"] == job.id else each for each in conversation["messages"]]
            conversation |= {"messages": messages, "answering": job.id}
        return _json(conversation)

    async def change(self, request: Request) -> Response:
        """Change a conversation; 409 if it was changed since the given version."""
        value = await _body(request, self.store.limits.conversation_bytes)
        owner = self.owner_of(request)
        conversation_id = request.path_params["id"]
        job = self.jobs.running_job(owner, conversation_id)
        protected_id = None if job is None else job.id
        after = await run_in_threadpool(self.store.change, owner, conversation_id, value, protected_id)
        self.jobs.conversation_changed(owner, conversation_id, after)
        return _json(summary_of(after))

    async def delete(self, request: Request) -> Response:
        """Delete a conversation; an answer that is being written ends."""
        owner = self.owner_of(request)
        conversation_id = request.path_params["id"]
        await run_in_threadpool(self.store.delete, owner, conversation_id)
        self.jobs.conversation_deleted(owner, conversation_id)
        return _json({"deleted": conversation_id})

    async def answer(self, request: Request) -> Response:
        """Start an answer to a stored message, `parent`, or continue one; `id` is the answer's.

        It continues when all clients have disconnected, up to `max_tokens` of the settings and the server's limits, and
        can be followed at `events`. 409 `answer_running` while another one of the conversation is being written.
        """
        value = await _body(request, MAX_ANSWER_REQUEST_BYTES)
        conversation_id = request.path_params["id"]
        job = await self.jobs.start(self.owner_of(request), conversation_id, value, self.source_of(request))
        return _json({"answer": job.message, "version": job.version}, 202)

    async def stop(self, request: Request) -> Response:
        """Stop an answer; its text so far is stored. 404 if it is not being written."""
        answer_id = request.path_params["answer"]
        if not await self.jobs.stop(self.owner_of(request), request.path_params["id"], answer_id):
            raise AnswerRefused(404, "not_running", "this answer is not being written")
        return _json({"stopped": answer_id})

    async def events(self, request: Request) -> Response:
        """Follow a conversation by server-sent events: state, answer, delta, end, changed, deleted.

        With the header last-event-id only the rest is sent of an answer that is being written.
        """
        last_event_id = request.headers.get("last-event-id")
        events = self.jobs.follow(self.owner_of(request), request.path_params["id"], last_event_id)
        first = await anext(events)  # before the response starts, so that errors have their status

        async def all_events() -> AsyncGenerator[bytes, None]:
            async with aclosing(events):
                yield first
                async for event in events:
                    yield event

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(all_events(), media_type="text/event-stream", headers=headers)

    async def export(self, request: Request) -> Response:
        """A file with one conversation, or with all."""
        conversation_id = request.path_params.get("id")
        pieces = await run_in_threadpool(self.store.export, self.owner_of(request), conversation_id)
        file = f"sporelm-{conversation_id or 'conversations'}.json"
        headers = {"content-disposition": f'attachment; filename="{file}"', "cache-control": "no-store"}
        body: AsyncIterator[str] = iterate_in_threadpool(pieces)
        return StreamingResponse(body, media_type="application/json", headers=headers)

    async def import_all(self, request: Request) -> Response:
        """Store the conversations of an exported file under new ids: all, or none."""
        value = await _body(request, self.store.limits.import_bytes)
        conversations = await run_in_threadpool(self.store.import_all, self.owner_of(request), value)
        return _json({"imported": [conversation["id"] for conversation in conversations]})

    async def add_image(self, request: Request) -> Response:
        """Store a picture, to which messages refer by the id in the answer. The body is the file itself."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not media_type.startswith("image/"):
            raise InvalidConversation("the body must be an image: send the header content-type: image/png or another")
        data = await _read_body(request, self.store.limits.image_bytes)
        identity = await run_in_threadpool(self.store.add_image, self.owner_of(request), data)
        return _json({"id": identity, "type": media_type_of(data), "bytes": len(data)})

    async def image(self, request: Request) -> Response:
        """A stored picture, as it was uploaded."""
        image = await run_in_threadpool(self.store.image, self.owner_of(request), request.path_params["image"])
        return Response(image.data, media_type=image.media_type, headers=IMAGE_HEADERS)


def conversation_endpoints() -> list[Endpoint]:
    """Return the routes for the description at /docs and /openapi.json."""
    one = PATH + "/{id}"

    def endpoint(
        method: str, path: str, handler: Any, reply: type | None, body: type | None = None, **fields: Any
    ) -> Endpoint:
        return Endpoint(method, path, handler, body=body, reply=reply, tag="Conversations", **fields)

    return [
        endpoint("GET", PATH, _Handlers.page, ConversationList),
        endpoint("POST", PATH, _Handlers.create, StoredConversation, NewConversation),
        endpoint("GET", one, _Handlers.get, ConversationReply),
        endpoint("PATCH", one, _Handlers.change, ConversationSummary, ConversationChange),
        endpoint("DELETE", one, _Handlers.delete, DeleteReply),
        endpoint("POST", one + "/answers", _Handlers.answer, AnswerReply, NewAnswer),
        endpoint("DELETE", one + "/answers/{answer}", _Handlers.stop, AnswerStopped),
        endpoint("GET", one + "/events", _Handlers.events, None, stream_media_type="text/event-stream"),
        endpoint("GET", one + "/export", _Handlers.export, ConversationExport),
        endpoint("GET", "/api/ui/export", _Handlers.export, ConversationExport),
        endpoint("POST", IMPORT_PATH, _Handlers.import_all, ImportReply, ConversationExport, takes_images=True),
        endpoint("POST", IMAGE_PATH, _Handlers.add_image, ImageReply),
        endpoint("GET", IMAGE_PATH + "/{image}", _Handlers.image, None),
    ]


def _with_json_errors(handler: Handler) -> Handler:
    """Return the handler with its errors as JSON responses."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except AnswerRefused as error:
            retry = {"retry-after": str(RETRY_SECONDS)} if error.status in (429, 503) else {}
            response = ApiError(error.status, str(error), code=error.code)
            return _json(openai_error_body(response), error.status, retry)
        except RequestError as error:
            status, code = next((status, code) for kind, status, code in STATUS if isinstance(error, kind))
            response = ApiError(status, str(error), code=code)
            if isinstance(error, InvalidConversation):
                response.param = error.param
            if isinstance(error, VersionConflict):
                response.extra_fields = {"version": error.version}
            return _json(openai_error_body(response), status)

    return endpoint


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(value, status, headers={"cache-control": "no-store", **(headers or {})})


def _number(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= maximum):
        raise InvalidConversation(f"{name} is {safe_repr(text)}: it must be a whole number up to {maximum}", name)
    return int(text)


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Return a request's body; at most `max_bytes` are read. Raises InvalidConversation, TooLarge."""
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > max_bytes:
                raise TooLarge(f"the body has more than {max_bytes} bytes, which is the limit")
    except ClientDisconnect:
        raise InvalidConversation("the body ended early") from None
    return bytes(data)


async def _body(request: Request, max_bytes: int) -> object:
    """Return a request's JSON; at most `max_bytes` are read. Raises InvalidConversation, TooLarge."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidConversation("the body must be JSON: send the header content-type: application/json")
    data = await _read_body(request, max_bytes)
    try:
        return await run_in_threadpool(json.loads, data)
    except (ValueError, RecursionError) as error:
        raise InvalidConversation(f"request body is not valid JSON: {safe_repr(str(error), 100)}") from None
