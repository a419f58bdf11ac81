"""/api/ui/...: the conversations of the web chat, for the key that a request bears.

Bodies are JSON; errors are {"error": {"message", "type", "param", "code"}}. What belongs to another key is not there:
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

from sporelm.errors import RequestError, shown
from sporelm.serve.conversation_form import BadConversation, TooMuch
from sporelm.serve.conversation_jobs import AnswerJobs, AnswerRefused, AnswerSource
from sporelm.serve.conversation_shapes import (
    AnswerBegun,
    AnswerStopped,
    ConversationBundle,
    ConversationChange,
    ConversationPage,
    ConversationSummary,
    Deleted,
    Imported,
    NewAnswer,
    NewConversation,
    OpenedConversation,
    StoredConversation,
)
from sporelm.serve.conversations import ConversationNotFound, VersionConflict, summary_of
from sporelm.serve.endpoint import Endpoint
from sporelm.serve.failures import RETRY_SECONDS

Handler = Callable[[Request], Awaitable[Response]]

PATH = "/api/ui/conversations"
MOST_LISTED = 500
MAX_ANSWER_BYTES = 64 << 10  # of the body that asks for an answer
STATUS: list[tuple[type[RequestError], int, str]] = [
    (ConversationNotFound, 404, "not_found"),
    (VersionConflict, 409, "version_conflict"),
    (TooMuch, 413, "too_large"),
    (BadConversation, 400, "invalid_value"),
    (RequestError, 507, "not_written"),
]


def conversation_routes(
    jobs: AnswerJobs, identity: Callable[[Request], str], answers: Callable[[Request], AnswerSource]
) -> list[Route]:
    """The routes of a store and of the answers that are written into it.

    identity  which key a request bears: any text, the same for the same key
    answers   what writes the answers that a request asks for
    """
    handlers = _Handlers(jobs, identity, answers)
    one = PATH + "/{id}"
    return [
        Route(PATH, _told(handlers.page), methods=["GET"]),
        Route(PATH, _told(handlers.create), methods=["POST"]),
        Route(one, _told(handlers.get), methods=["GET"]),
        Route(one, _told(handlers.change), methods=["PATCH"]),
        Route(one, _told(handlers.delete), methods=["DELETE"]),
        Route(one + "/answers", _told(handlers.answer), methods=["POST"]),
        Route(one + "/answers/{answer}", _told(handlers.stop), methods=["DELETE"]),
        Route(one + "/events", _told(handlers.events), methods=["GET"]),
        Route(one + "/export", _told(handlers.export), methods=["GET"]),
        Route("/api/ui/export", _told(handlers.export), methods=["GET"]),
        Route("/api/ui/import", _told(handlers.import_bundle), methods=["POST"]),
    ]


class _Handlers:
    """One handler for each route; the store, which waits for the disk, is called in a thread."""

    def __init__(
        self, jobs: AnswerJobs, identity: Callable[[Request], str], answers: Callable[[Request], AnswerSource]
    ) -> None:
        self.jobs, self.store, self.identity, self.answers = jobs, jobs.store, identity, answers

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
        """A conversation with its messages; `answering` is the id of the one that is being written, if one is."""
        owner, name = self.identity(request), request.path_params["id"]
        conversation = await run_in_threadpool(self.store.get, owner, name)
        job = self.jobs.running(owner, name)
        if job is not None:
            messages = [job.message if each["id"] == job.id else each for each in conversation["messages"]]
            conversation |= {"messages": messages, "answering": job.id}
        return _json(conversation)

    async def change(self, request: Request) -> Response:
        """Change a conversation; 409 if it was changed since the version that is given."""
        value = await _body(request, self.store.limits.conversation_bytes)
        owner, name = self.identity(request), request.path_params["id"]
        job = self.jobs.running(owner, name)
        after = await run_in_threadpool(self.store.change, owner, name, value, None if job is None else job.id)
        self.jobs.changed(owner, name, after)
        return _json(summary_of(after))

    async def delete(self, request: Request) -> Response:
        """Delete a conversation; an answer that is being written ends."""
        owner, name = self.identity(request), request.path_params["id"]
        await run_in_threadpool(self.store.delete, owner, name)
        self.jobs.deleted(owner, name)
        return _json({"deleted": name})

    async def answer(self, request: Request) -> Response:
        """Have the server write an answer to a stored message, `parent`, or go on with one; `id` is the answer's.

        It goes on when everybody has left, up to `max_tokens` of the settings and the server's limits, and can be
        followed at `events`. 409 `answer_running` while another one of the conversation is being written.
        """
        value = await _body(request, MAX_ANSWER_BYTES)
        name = request.path_params["id"]
        job = await self.jobs.start(self.identity(request), name, value, self.answers(request))
        return _json({"answer": job.message, "version": job.version}, 202)

    async def stop(self, request: Request) -> Response:
        """Stop an answer; what has come of it stays. 404 if it is not being written."""
        answer = request.path_params["answer"]
        if not await self.jobs.stop(self.identity(request), request.path_params["id"], answer):
            raise AnswerRefused(404, "not_running", "this answer is not being written")
        return _json({"stopped": answer})

    async def events(self, request: Request) -> Response:
        """Follow a conversation by server-sent events: state, answer, delta, end, changed, deleted.

        With the header last-event-id only what came since is sent of an answer that is being written.
        """
        place = request.headers.get("last-event-id")
        events = self.jobs.follow(self.identity(request), request.path_params["id"], place)
        first = await anext(events)  # before the head, so that errors have their status

        async def all_of_them() -> AsyncGenerator[bytes, None]:
            async with aclosing(events):
                yield first
                async for event in events:
                    yield event

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(all_of_them(), media_type="text/event-stream", headers=headers)

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

    def endpoint(
        method: str, path: str, handler: Any, reply: type | None, body: type | None = None, streams: str | None = None
    ) -> Endpoint:
        return Endpoint(method, path, handler, body=body, reply=reply, streams=streams, tag="Conversations")

    return [
        endpoint("GET", PATH, _Handlers.page, ConversationPage),
        endpoint("POST", PATH, _Handlers.create, StoredConversation, NewConversation),
        endpoint("GET", one, _Handlers.get, OpenedConversation),
        endpoint("PATCH", one, _Handlers.change, ConversationSummary, ConversationChange),
        endpoint("DELETE", one, _Handlers.delete, Deleted),
        endpoint("POST", one + "/answers", _Handlers.answer, AnswerBegun, NewAnswer),
        endpoint("DELETE", one + "/answers/{answer}", _Handlers.stop, AnswerStopped),
        endpoint("GET", one + "/events", _Handlers.events, None, streams="text/event-stream"),
        endpoint("GET", one + "/export", _Handlers.export, ConversationBundle),
        endpoint("GET", "/api/ui/export", _Handlers.export, ConversationBundle),
        endpoint("POST", "/api/ui/import", _Handlers.import_bundle, Imported, ConversationBundle),
    ]


def _told(handler: Handler) -> Handler:
    """The handler, its errors told as JSON."""

    async def endpoint(request: Request) -> Response:
        told: dict[str, Any]
        try:
            return await handler(request)
        except AnswerRefused as error:
            told = {"message": str(error), "type": "invalid_request_error", "param": None, "code": error.code}
            again = {"retry-after": str(RETRY_SECONDS)} if error.status in (429, 503) else {}
            return _json({"error": told}, error.status, again)
        except RequestError as error:
            status, code = next((status, code) for kind, status, code in STATUS if isinstance(error, kind))
            told = {"message": str(error), "type": "invalid_request_error", "param": None, "code": code}
            if isinstance(error, VersionConflict):
                told["version"] = error.version
            return _json({"error": told}, status)

    return endpoint


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(value, status, headers={"cache-control": "no-store", **(headers or {})})


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
        raise BadConversation(f"request body is not valid JSON: {shown(str(error), 100)}") from None
