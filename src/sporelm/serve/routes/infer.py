"""/infer, /cancel, /fork and /drop: server-side sessions, in the protocol of InfiniLM's web API (version 2).

docs/server.md lists the differences from that protocol.
"""

import base64
import binascii
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field
from starlette.responses import Response

from sporelm.errors import RequestError
from sporelm.serve.chat.sampling_fields import MaxTokens, Seed, TopK
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ApiError, session_error_body
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import RequestBody
from sporelm.serve.http.sse import session_error_event
from sporelm.serve.http.streamed_response import StreamedResponse
from sporelm.serve.sessions.session_pool import (
    Session,
    SessionName,
    new_conversation,
    session_busy,
    session_not_found,
)
from sporelm.serve.sessions.session_turn import SessionTurn

SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
ROLES = ("system", "user", "assistant")


class SessionMessage(RequestBody, kw_only=True):
    """A message; its content is in the request's encoding."""

    role: str
    content: str


class InferRequest(RequestBody, kw_only=True):
    """Messages that follow a position of a session, and how to answer them.

    encoding    of the contents: base64 (of UTF-8), or text
    dialog_pos  how many of the session's messages are kept; 0 starts it over
    """

    messages: list[SessionMessage]
    encoding: str = "base64"
    session_id: str | None = None
    dialog_pos: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: TopK | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k_dashed: TopK | None = field(name="top-k", default=None)
    top_p_dashed: Annotated[float, Meta(gt=0, le=1)] | None = field(name="top-p", default=None)
    max_tokens: MaxTokens | None = None
    seed: Seed | None = None


class SessionRequest(RequestBody, kw_only=True):
    session_id: str
    model: str | None = None


class ForkRequest(RequestBody, kw_only=True):
    session_id: str
    new_session_id: str
    model: str | None = None


class SessionReply(msgspec.Struct):
    message: str


async def infer(call: ApiCall, body: InferRequest) -> Response:
    """The answer to messages, in a session or without one: as raw text, or as events if Accept has text/event-stream.
    Messages are answered only if the last one is the user's. A client that disconnects cancels the answer; the text so
    far stays a message of the session."""
    messages = decode_messages(body)
    if body.session_id is None and body.dialog_pos:
        raise position_out_of_range(0)
    model = await call.model(body.model)
    sessions = call.server.sessions
    session: Session | None = None
    if body.session_id is None:
        conversation = await new_conversation(model, call.key)
    else:
        session_id = checked_id(body.session_id)
        session = await sessions.acquire(call.key, model, session_id, create=body.dialog_pos == 0)
        conversation = session.conversation
    turn = SessionTurn(call, model, conversation, session)
    call.resources.push_async_callback(turn.finish)
    try:
        num_messages = await start_turn(turn, body, messages)
    except BaseException:
        if session is not None and session.is_new:
            sessions.forget(session)  # a request that is refused changes nothing
        await turn.finish()
        raise
    if session is not None:
        session.is_new = False
    headers = {"x-dialog-pos": str(num_messages + (turn.stream is not None))}
    wants_events = "text/event-stream" in call.request.headers.get("accept", "")
    if turn.stream is None:
        await turn.finish()
        media_type = "text/event-stream" if wants_events else "text/plain"
        return Response(b"", 200, headers, f"{media_type}; charset=utf-8")
    if wants_events:
        response = StreamedResponse(turn.events(), "text/event-stream", session_error_event, call)
    else:
        response = StreamedResponse(turn.text(), "text/plain", _error_line, call)
    response.headers.update(headers)
    return response


async def start_turn(turn: SessionTurn, body: InferRequest, new_messages: list[dict[str, Any]]) -> int:
    """Revert the conversation, append the messages, and start the answer if the last one is the user's. Return the
    number of messages.

    Raises ApiError: 416, or 400 for too many characters; and as `SessionTurn.start`. Then the messages are unchanged.
    """
    conversation = turn.conversation
    before = list(conversation.messages)
    if body.dialog_pos > len(before):
        raise position_out_of_range(len(before))
    messages = [*before[: body.dialog_pos], *new_messages]
    turn.call.check_chat_size(len(messages), body.max_tokens)
    num_characters = sum(len(each["content"]) for each in messages)
    max_characters = turn.call.server.config.max_body
    if num_characters > max_characters:
        raise ApiError(
            400,
            f"the session would hold {num_characters} characters: at most {max_characters} are kept (max_body); start "
            "a new one",
        )
    conversation.revert(body.dialog_pos)
    if messages and messages[-1]["role"] == "user":
        try:
            await turn.start(messages, sampling_from_infer(body), body.max_tokens)
        except BaseException:
            conversation.messages = before
            raise
    conversation.messages = messages
    return len(messages)


def _error_line(error: ApiError) -> bytes:
    """Return an error within raw text: a line of its own."""
    return f"\n[{error.message}]\n".encode()


def sampling_from_infer(body: InferRequest) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that a request sets. Raises RequestError for one that is given twice."""
    sampling: dict[str, Any] = {}
    for name in ("top_k", "top_p"):
        values = [getattr(body, name), getattr(body, f"{name}_dashed")]
        given = [value for value in values if value is not None]
        if len(given) > 1:
            raise RequestError(f"{name} is given twice, with _ and with -: give it once")
        if given:
            sampling[name] = given[0]
    if body.temperature is not None:
        sampling["temperature"] = body.temperature
    if body.seed is not None:
        sampling["seed"] = body.seed
    return sampling


def decode_messages(body: InferRequest) -> list[dict[str, Any]]:
    """Return the messages, decoded. Raises ApiError: 400, with code 1 for a content that cannot be decoded."""
    if body.encoding not in ("base64", "text"):
        raise ApiError(400, f"Unknown encoding: {body.encoding[:60]}", session_code=1)
    messages = []
    for index, each in enumerate(body.messages):
        if each.role not in ROLES:
            raise ApiError(400, f"messages[{index}].role is {each.role[:60]!r}: it must be one of {', '.join(ROLES)}")
        content = each.content
        if body.encoding == "base64":
            try:
                content = base64.b64decode(content, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError, ValueError) as reason:
                raise ApiError(400, f"Decode failed: messages[{index}]: {reason}", session_code=1) from None
        messages.append({"role": each.role, "content": content})
    return messages


def checked_id(session_id: str) -> str:
    """Return a session's id. Raises ApiError, 400."""
    if SESSION_ID.fullmatch(session_id) is None:
        raise ApiError(400, f"session id {session_id[:60]!r} is not valid: use 1 to 128 letters, digits and ._:-")
    return session_id


def position_out_of_range(position: int) -> ApiError:
    """Return the error for a position beyond the session's, which it contains."""
    return ApiError(416, "Dialog position out of range", extra_fields={"current_dialog_pos": position})


async def cancel(call: ApiCall, body: SessionRequest) -> SessionReply:
    """Cancel the answer of a session; its text so far stays. Does nothing if the session is not answering."""
    model = await call.model(body.model)
    sessions = call.server.sessions
    session = sessions.find(call.key, model, checked_id(body.session_id))
    if session is None and not sessions.exists(SessionName(call.key.owner, model.name, body.session_id)):
        raise session_not_found()
    if session is None or session.stream is None:
        return SessionReply("nothing to cancel")
    session.stream.close()
    return SessionReply("cancel success")


async def fork(call: ApiCall, body: ForkRequest) -> SessionReply:
    """Copy a session under a new id. Both share the keys and values computed so far."""
    model = await call.model(body.model)
    sessions = call.server.sessions
    session_id = checked_id(body.session_id)
    new_id = checked_id(body.new_session_id)
    session = sessions.find(call.key, model, session_id)
    if session is not None and session.is_acquired:
        raise session_busy()
    await sessions.fork(await sessions.acquire(call.key, model, session_id, create=False), new_id)
    return SessionReply("fork success")


async def drop(call: ApiCall, body: SessionRequest) -> SessionReply:
    """Delete a session; its answer is cancelled."""
    model = await call.model(body.model)
    if not await call.server.sessions.drop(call.key, model, checked_id(body.session_id)):
        raise session_not_found()
    return SessionReply("drop success")


def _endpoint(path: str, handler: Any, body: type, **fields: Any) -> Endpoint:
    return Endpoint("POST", path, handler, body=body, error_format=session_error_body, tag="Sessions", **fields)


ENDPOINTS: list[Endpoint] = [
    _endpoint("/infer", infer, InferRequest, stream_media_type="text/plain"),
    _endpoint("/cancel", cancel, SessionRequest, reply=SessionReply),
    _endpoint("/fork", fork, ForkRequest, reply=SessionReply),
    _endpoint("/drop", drop, SessionRequest, reply=SessionReply),
]
