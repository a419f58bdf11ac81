"""An endpoint: a path, what its body must look like, and the function that answers. `routes/` are lists of them."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sporelm.errors import ContextOverflow, SporeError
from sporelm.serve.answering import AnswerStream, begin
from sporelm.serve.failures import ENDING, Refusal, Shape, ollama_shape, openai_shape, overflow, refusal_of, shape_for
from sporelm.serve.keys import ApiKey
from sporelm.serve.limits import Gone, Message, Receive, Scope, Send
from sporelm.serve.places import places_of, unusable, without
from sporelm.text.valid_text import invalid_character

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sporelm.api.answer import Answer
    from sporelm.serve.served_model import ServedModel
    from sporelm.serve.server import Server

LARGE = 8192  # bytes of a body, from which on a thread does what takes longer the more there is
SEARCHED = 1 << 20  # bytes of a body in which the text is searched for that is not valid Unicode
HUGE = 1 << 16  # bytes of a body that is read without a look at what can be collected
T = TypeVar("T")


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=False):
    """A request's JSON. A field that we do not know is refused: to ignore it would be to answer something else."""


class Call:
    """One request on its way to its answer: whose it is, and what it has opened."""

    request: Request

    def __init__(self, server: "Server", key: ApiKey, opened: AsyncExitStack, request_id: str) -> None:
        """A call of a server's own, without an HTTP request; closing `opened` ends all work for it."""
        self.server, self.key, self.opened, self.request_id = server, key, opened, request_id
        self.places: dict[str, str] = {}  # of the files of the models in use, by which errors may name them
        self.large = False  # whether its body is, or the chat that was rendered of it
        self.rolling = False  # whether it can have the field `roll`
        self.deadline = asyncio.get_running_loop().time() + self.server.config.request_seconds

    @classmethod
    def of(cls, request: Request) -> "Call":
        """The call that an HTTP request makes."""
        state = request.state
        call = cls(request.app.state.server, state.key, state.opened, state.request_id)
        call.request = request
        return call

    async def model(self, name: str | None = None) -> "ServedModel":
        """A model, for as long as this request lasts. Raises Refusal: 404, or 500 and 503 if it cannot be loaded."""
        spec = self.server.models.spec(name)
        try:
            model = await self.opened.enter_async_context(self.server.models.use(name))
        except SporeError as error:
            raise unusable(spec, error) from error
        self.places |= places_of(model, spec)
        return model

    def refused(self, error: BaseException) -> Refusal:
        """How an error is answered: without the places of files."""
        refusal = refusal_of(error)
        if isinstance(error, ContextOverflow):
            refusal.message = overflow(error, rolling=self.rolling)
        refusal.message = without(refusal.message, self.places)
        return refusal

    async def begin(self, model: "ServedModel", answers: "Sequence[Answer]") -> list[AnswerStream]:
        """Have answers made; they are cancelled when this request ends. Raises as `answering.begin`, and Refusal for
        more than could ever wait together."""
        most = self.server.config.max_waiting
        if len(answers) > most:
            raise Refusal(400, f"{len(answers)} answers to one prompt are too many: {most} may wait (max_waiting)")
        streams = await begin(model.llm, model.bell, answers)
        for stream in streams:
            self.opened.callback(self._end, stream)
            self.server.answers.add(stream)
        return streams

    def _end(self, stream: AnswerStream) -> None:
        self.server.answers.discard(stream)
        stream.close()

    def check_size(self, messages: int, tokens: int | None) -> None:
        """Raise Refusal for a chat of more messages, or an answer of more tokens, than this server takes."""
        config = self.server.config
        if messages > config.max_messages:
            raise Refusal(400, f"{messages} messages are too many: at most {config.max_messages} (max_messages)")
        if config.max_tokens is not None and tokens is not None and tokens > config.max_tokens:
            raise Refusal(
                400, f"{tokens} tokens of an answer are too many: at most {config.max_tokens} are made (max_tokens)"
            )

    def room(self, max_context: int, prompt: int, asked: int | None) -> int:
        """Tokens of an answer at most: as asked for, or as context and server allow."""
        if asked is not None:
            return asked
        room = max(1, max_context - prompt + 1)
        most = self.server.config.max_tokens
        return room if most is None else min(room, most)

    def in_time(self) -> asyncio.Timeout:
        """A context that ends with TimeoutError at the request's deadline."""
        return asyncio.timeout_at(self.deadline)

    @property
    def late(self) -> Refusal:
        """What is said after the deadline."""
        seconds = self.server.config.request_seconds
        message = f"the answer was not finished in {seconds:g} s, which is the limit (request_seconds): ask for less"
        return Refusal(504, message, "timeout_error", "request_timeout")


Handler = Callable[[Call, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """One route. The handler gets the call and the body (None where none is wanted), and returns a Response or what is
    to become JSON. Its docstring is the route's description.

    body      the type of the JSON body
    reply     the type of the JSON answer, for the description
    streams   the media type of an answer in pieces, if it can come so
    alias_of  the path that this one is another name of
    """

    method: str
    path: str
    handler: Handler
    body: type | None = None
    reply: Any = None
    streams: str | None = None
    shape: Shape = openai_shape
    tag: str = "OpenAI"
    alias_of: str | None = None

    def at(self, path: str) -> "Endpoint":
        """Return the same endpoint under another path."""
        return replace(self, path=path, alias_of=self.path)

    def route(self) -> Route:
        """As starlette wants it."""

        async def endpoint(request: Request) -> "Guarded":
            return Guarded(self, request)

        return Route(self.path, endpoint, methods=[self.method])

    async def respond(self, request: Request) -> Response:
        """The response to a request, errors included."""
        call: Call | None = None
        try:
            call = Call.of(request)
            data = await request.body() if self.body is not None else b""
            call.large, call.rolling = len(data) > LARGE, hasattr(self.body, "roll")
            body = decoded(data, self.body, request) if self.body is not None else None
            try:
                async with call.in_time():
                    made = await self.handler(call, body)
            except TimeoutError:
                raise call.late from None
        except (ClientDisconnect, asyncio.CancelledError):
            raise
        except Exception as error:
            return self.refused(refusal_of(error) if call is None else call.refused(error))
        return made if isinstance(made, Response) else json_response(made)

    def refused(self, refusal: Refusal) -> Response:
        """An error as this endpoint's API writes it."""
        headers = dict(refusal.headers)
        if refusal.status in ENDING:
            headers["connection"] = "close"
        return json_response(self.shape(refusal), refusal.status, headers)


class Guarded(Response):
    """Makes and sends a response while it watches the connection: when the client leaves, all work for it ends."""

    def __init__(self, endpoint: Endpoint, request: Request) -> None:
        self.endpoint, self.request = endpoint, request
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = asyncio.Event()  # the body is there; from now on the connection says nothing but that it has ended
        request = Request(scope, _noting(receive, read), send)

        async def answer() -> None:
            response = await self.endpoint.respond(request)
            await response(scope, receive, send)

        async def leave() -> None:
            await read.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        if self.endpoint.body is None:
            read.set()
        work, watch = asyncio.ensure_future(answer()), asyncio.ensure_future(leave())
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
            else:
                raise Gone("the client left")
        except ClientDisconnect:
            raise Gone("the client left") from None
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)


def _noting(receive: Receive, read: asyncio.Event) -> Receive:
    """`receive`, which notes when the body is complete."""

    async def noted() -> Message:
        message = await receive()
        if not message.get("more_body", False):
            read.set()
        return message

    return noted


class Stream(Response):
    """A response that is sent in pieces as they are made; an error on the way becomes the last piece. When it ends,
    however it ends, the making of pieces has ended too.

    on_error   what of an error is sent
    """

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], media_type: str, on_error: Callable[[Refusal], bytes], call: Call
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type)
        del self.headers["content-length"]
        self.pieces, self.on_error, self.call = pieces, on_error, call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with aclosing(self.pieces) as pieces, self.call.in_time():
                async for piece in pieces:
                    await send(part_of(piece))
        except Exception as error:
            refusal = self.call.late if isinstance(error, TimeoutError) else self.call.refused(error)
            await send(part_of(self.on_error(refusal)))
        await send(part_of(b"", more=False))


def part_of(data: bytes, *, more: bool = True) -> Message:
    """A part of a body, as ASGI has it."""
    return {"type": "http.response.body", "body": data, "more_body": more}


_encoder = msgspec.json.Encoder()


def encoded(value: Any) -> bytes:
    """A value as JSON."""
    return _encoder.encode(value)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with JSON."""
    return Response(encoded(value), status, headers, "application/json")


def decoded(data: bytes, kind: type[T], request: Request) -> T:
    """A body as what it must be. Raises Refusal, 400 that names the field, or 415."""
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json") and not _is_curl(media, request):
        raise Refusal(415, f"the body is {media[:60]!r}: send application/json", code="not_json")
    collects = len(data) > HUGE and gc.isenabled()
    try:
        if collects:  # else a million small lists are looked through for cycles again and again, for a second
            gc.disable()
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as reason:
        raise Refusal(
            400, f"the body is not as it must be: {reason}", code="invalid_body", param=_field(reason)
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        what = f"request body is not valid JSON: {invalid_text(data) or reason}"
        raise Refusal(400, what, code="invalid_json") from None
    finally:
        if collects:
            gc.enable()


def _is_curl(media: str, request: Request) -> bool:
    """Whether a body that calls itself a form is JSON: Ollama's documentation has `curl -d` without a type. A form that
    a page of another site sends, which needs nobody's leave, has one of the two headers, that browsers set themselves.
    """
    form = media == "application/x-www-form-urlencoded" and shape_for(request.url.path) is ollama_shape
    return form and "origin" not in request.headers and "sec-fetch-site" not in request.headers


def invalid_text(data: bytes) -> str:
    """Describe the first text of a body that is not valid Unicode, by its field and the position in it, or by its byte
    where the body cannot be searched; nothing if all is valid."""
    text = data.decode("utf-8", "surrogateescape")
    with suppress(ValueError, RecursionError):
        if len(data) <= SEARCHED:
            for place, each in _texts_in(json.loads(text)):
                if (wrong := invalid_character(each)) is not None:
                    return f"{place or 'it'} holds {wrong}"
    at = next((at for at, sign in enumerate(text) if "\ud800" <= sign <= "\udfff"), None)
    if at is None:
        return ""
    start = len(text[:at].encode())
    return f"byte {start} is {data[start]:#04x}, which is not UTF-8"


def _texts_in(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts of a JSON value, each with its place, as in messages[0].content."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from _texts_in(each, f"{place}[{at}]")
    elif isinstance(value, dict):
        for name, each in value.items():
            yield place or "a name", name
            yield from _texts_in(each, f"{place}.{name}".removeprefix("."))


def _field(reason: msgspec.ValidationError) -> str | None:
    """The field at fault, as in "... - at `$.messages[0].role`"."""
    _, mark, place = str(reason).rpartition(" - at `$.")
    return place.rstrip("`") if mark else None
