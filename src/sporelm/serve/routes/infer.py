"""/infer, /cancel, /fork and /drop: sessions that the server keeps, as the web API of InfiniLM has them (version 2).

docs/server.md says what of that protocol was mended.
"""

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field
from starlette.responses import Response

from sporelm.api.answer import Answer
from sporelm.api.conversation import Conversation
from sporelm.api.isolation import render_apart
from sporelm.api.params import SamplingParams
from sporelm.errors import ModelFileError, RequestError
from sporelm.serve.answering import AnswerStream, in_thread_if
from sporelm.serve.endpoint import LARGE, Body, Call, Endpoint, Stream, encoded
from sporelm.serve.events import session_error, sse
from sporelm.serve.failures import Refusal, session_shape
from sporelm.serve.sampling import Seed, TopK
from sporelm.serve.served_model import ServedModel
from sporelm.serve.sessions import Session, SessionName, busy, close_conversation, new_conversation, not_found
from sporelm.serve.usage import check_finished, usage_of
from sporelm.text import RenderedPrompt

NUMBER = re.compile(r"[A-Za-z0-9._:-]{1,128}")
ROLES = ("system", "user", "assistant")
log = logging.getLogger("sporelm.serve")


class Sentence(Body, kw_only=True):
    """A message; its content is in the request's encoding."""

    role: str
    content: str


class InferRequest(Body, kw_only=True):
    """What is said to a session from a position on, and how it is to be answered.

    encoding    of the contents: base64 (of UTF-8), or text
    dialog_pos  how many of the session's messages are kept; 0 begins it anew
    """

    messages: list[Sentence]
    encoding: str = "base64"
    session_id: str | None = None
    dialog_pos: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: TopK | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k_dashed: TopK | None = field(name="top-k", default=None)
    top_p_dashed: Annotated[float, Meta(gt=0, le=1)] | None = field(name="top-p", default=None)
    max_tokens: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = None
    seed: Seed | None = None


class SessionRequest(Body, kw_only=True):
    session_id: str
    model: str | None = None


class ForkRequest(Body, kw_only=True):
    session_id: str
    new_session_id: str
    model: str | None = None


class Told(msgspec.Struct):
    message: str


class Turn:
    """One answer of a session, or of nobody's."""

    def __init__(self, call: Call, model: ServedModel, conversation: Conversation, session: Session | None) -> None:
        self.call, self.model, self.conversation, self.session = call, model, conversation, session
        self.messages: list[dict[str, Any]] = conversation.messages
        self.rendered, self.ids = RenderedPrompt(), list[int]()
        self.stream: AnswerStream | None = None
        self.kept = False
        self.finishing: asyncio.Future[None] | None = None

    async def begin(self, messages: list[dict[str, Any]], params: dict[str, Any], most: int | None) -> None:
        """Have the answer to all these messages made. Changes nothing of the conversation if that is refused."""
        llm, conversation = self.model.llm.llm, self.conversation

        large = sum(len(each["content"]) for each in messages) > LARGE
        try:
            self.rendered = await render_apart(llm.isolation, lambda: llm.render(messages), large=large)
        except ModelFileError as reason:
            raise RequestError(str(reason)) from None

        def prepare() -> Answer:
            self.ids = conversation.ids_of(self.rendered)
            chosen = SamplingParams(
                **params, max_tokens=self.call.room(llm.max_context, 0, most), roll=True, salt=self.call.key.salt
            )
            return llm.answer(self.ids, chosen, conversation.sequence, continues=False)

        answer = await in_thread_if(large or len(self.rendered) > LARGE, prepare)
        (self.stream,) = await self.call.begin(self.model, [answer])
        self.messages = messages
        if self.session is not None:
            self.session.stream = self.stream

    def keep(self) -> None:
        """Take what was answered into the conversation: also a part of it, if the client has left."""
        if self.stream is None or self.kept:
            return
        self.kept = True
        answer = self.stream.answer
        answer.take(self.model.llm.pump)
        if answer.token_ids and answer.finish_reason != "error":
            self.conversation.keep(answer, self.messages, self.rendered, self.ids)
        else:
            self.conversation.messages = self.messages

    async def finish(self) -> None:
        """The request has ended, however: what runs is cancelled, what was said is kept, the session is given back.

        To be called before the client hears of the end: it may ask again at once.
        """
        if self.finishing is None:
            self.finishing = asyncio.ensure_future(self._finish())
        await asyncio.shield(self.finishing)  # whoever waits may leave, but the session is given back

    async def _finish(self) -> None:
        sessions = self.call.server.sessions
        if self.stream is not None:
            self.stream.close()
            try:
                await self.model.llm.between_steps(lambda: None)  # until here the engine may use the sequence
                self.keep()
            except Exception as reason:  # the engine is gone, and what it held
                log.error("a session's answer cannot be kept, and so it is forgotten: %s", reason)
                if self.session is not None:
                    sessions.forget(self.session)
        if self.session is not None:
            sessions.give_back(self.session)
        if self.session is None or not sessions.is_kept(self.session):
            await close_conversation(self.model, self.conversation)

    async def texts(self) -> AsyncGenerator[bytes, None]:
        """The answer as raw text, piece by piece."""
        assert self.stream is not None
        async for piece in self.stream.pieces():
            if piece.completion is not None and piece.finish_reason != "cancelled":
                check_finished(piece.completion, constrained=False)
            if piece.finish_reason is not None:
                await self.finish()
            if piece.text:
                yield piece.text.encode("utf-8", "replace")

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events: {"text"}, and at last `done` with where the dialog stands."""
        assert self.stream is not None
        async for piece in self.stream.pieces():
            if piece.text:
                yield sse(encoded({"text": piece.text}))
            if piece.completion is not None:
                if piece.finish_reason != "cancelled":
                    check_finished(piece.completion, constrained=False)
                await self.finish()
                told = {
                    "finish_reason": piece.finish_reason,
                    "dialog_pos": len(self.conversation.messages),
                    "usage": usage_of([[piece.completion]]),
                }
                yield sse(encoded(told), b"done")


async def infer(call: Call, body: InferRequest) -> Response:
    """Say something to a session, or to none, and have it answered: as raw text, or as events if Accept asks for
    text/event-stream. Only what ends with a message of the user is answered. Who leaves cancels; what was said stays.
    """
    said = sentences(body)
    if body.session_id is None and body.dialog_pos:
        raise out_of_range(0)
    model = await call.model(body.model)
    sessions = call.server.sessions
    session: Session | None = None
    if body.session_id is None:
        conversation = await new_conversation(model, call.key)
    else:
        number = checked(body.session_id)
        session = await sessions.take(call.key, model, number, create=body.dialog_pos == 0)
        conversation = session.conversation
    turn = Turn(call, model, conversation, session)
    call.opened.push_async_callback(turn.finish)
    try:
        messages = await begun(turn, body, said)
    except BaseException:
        if session is not None and session.new:
            sessions.forget(session)  # a request that is refused changes nothing
        await turn.finish()
        raise
    if session is not None:
        session.new = False
    headers = {"x-dialog-pos": str(len(messages) + (turn.stream is not None))}
    wants_events = "text/event-stream" in call.request.headers.get("accept", "")
    if turn.stream is None:
        await turn.finish()
        media = "text/event-stream" if wants_events else "text/plain"
        return Response(b"", 200, headers, f"{media}; charset=utf-8")
    if wants_events:
        made = Stream(turn.events(), "text/event-stream", session_error, call)
    else:
        made = Stream(turn.texts(), "text/plain", _cut, call)
    made.headers.update(headers)
    return made


async def begun(turn: Turn, body: InferRequest, said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Begin a turn: revert, take in what was said, and have it answered if the user spoke last; all messages.

    Raises Refusal: 416, or 400 for more than is kept; and as `Turn.begin`. Then the messages are what they were.
    """
    conversation, before = turn.conversation, list(turn.conversation.messages)
    if body.dialog_pos > len(before):
        raise out_of_range(len(before))
    messages = [*before[: body.dialog_pos], *said]
    turn.call.check_size(len(messages), body.max_tokens)
    size, most = sum(len(each["content"]) for each in messages), turn.call.server.config.max_body
    if size > most:
        raise Refusal(400, f"the session would hold {size} characters: at most {most} are kept (max_body); begin anew")
    conversation.revert(body.dialog_pos)
    if messages and messages[-1]["role"] == "user":
        try:
            await turn.begin(messages, sampling(body), body.max_tokens)
        except BaseException:
            conversation.messages = before
            raise
    conversation.messages = messages
    return messages


def _cut(refusal: Refusal) -> bytes:
    """Raw text has no place for an error: it is said in the text, on a line of its own."""
    return f"\n[{refusal.message}]\n".encode()


def sampling(body: InferRequest) -> dict[str, Any]:
    """The fields of `SamplingParams` that a request gives. Raises RequestError for one that is given in two ways."""
    found: dict[str, Any] = {}
    for name in ("top_k", "top_p"):
        values = [getattr(body, name), getattr(body, f"{name}_dashed")]
        given = [value for value in values if value is not None]
        if len(given) > 1:
            raise RequestError(f"{name} is given twice, with _ and with -: give it once")
        if given:
            found[name] = given[0]
    if body.temperature is not None:
        found["temperature"] = body.temperature
    if body.seed is not None:
        found["seed"] = body.seed
    return found


def sentences(body: InferRequest) -> list[dict[str, Any]]:
    """The messages, decoded. Raises Refusal, 400 with code 1 for what cannot be."""
    if body.encoding not in ("base64", "text"):
        raise Refusal(400, f"Unknown encoding: {body.encoding[:60]}", detail=1)
    found = []
    for index, each in enumerate(body.messages):
        if each.role not in ROLES:
            raise Refusal(400, f"messages[{index}].role is {each.role[:60]!r}: it must be one of {', '.join(ROLES)}")
        content = each.content
        if body.encoding == "base64":
            try:
                content = base64.b64decode(content, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError, ValueError) as reason:
                raise Refusal(400, f"Decode failed: messages[{index}]: {reason}", detail=1) from None
        found.append({"role": each.role, "content": content})
    return found


def checked(number: str) -> str:
    """A session's id. Raises Refusal, 400."""
    if NUMBER.fullmatch(number) is None:
        raise Refusal(400, f"the session id {number[:60]!r} is none: take 1 to 128 letters, digits and ._:-")
    return number


def out_of_range(position: int) -> Refusal:
    """416, with the position that the session has."""
    return Refusal(416, "Dialog position out of range", more={"current_dialog_pos": position})


async def cancel(call: Call, body: SessionRequest) -> Told:
    """End the answer that a session is making; what it has said stays. Does nothing to one that makes none."""
    model = await call.model(body.model)
    session = call.server.sessions.find(call.key, model, checked(body.session_id))
    if session is None and not call.server.sessions.exists(SessionName(call.key.owner, model.name, body.session_id)):
        raise not_found()
    if session is None or session.stream is None:
        return Told("nothing to cancel")
    session.stream.close()
    return Told("cancel success")


async def fork(call: Call, body: ForkRequest) -> Told:
    """A second session that begins as this one, and shares what was computed for it."""
    model = await call.model(body.model)
    sessions = call.server.sessions
    number, other = checked(body.session_id), checked(body.new_session_id)
    session = sessions.find(call.key, model, number)
    if session is not None and session.taken:
        raise busy()
    await sessions.fork(await sessions.take(call.key, model, number, create=False), other)
    return Told("fork success")


async def drop(call: Call, body: SessionRequest) -> Told:
    """Forget a session; what it is answering is cancelled."""
    model = await call.model(body.model)
    if not await call.server.sessions.drop(call.key, model, checked(body.session_id)):
        raise not_found()
    return Told("drop success")


ENDPOINTS: list[Endpoint] = [
    Endpoint("POST", "/infer", infer, body=InferRequest, streams="text/plain", shape=session_shape, tag="Sessions"),
    *(
        Endpoint("POST", path, handler, body=body, reply=Told, shape=session_shape, tag="Sessions")
        for path, handler, body in (
            ("/cancel", cancel, SessionRequest),
            ("/fork", fork, ForkRequest),
            ("/drop", drop, SessionRequest),
        )
    ),
]
