"""A server to chat with: its models, its completions, and conversations, whose messages are kept here."""

import json
from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sporelm.cli.chat_sessions import ReasoningPiece
from sporelm.cli.remote.api_key_option import check_key
from sporelm.cli.remote.conversation_file import read_conversation, write_conversation
from sporelm.cli.remote.error_responses import MAX_ERROR_BYTES, clip, error_for_response
from sporelm.cli.remote.http_exchange import HttpExchange, ResponseHead
from sporelm.cli.remote.remote_completion import DONE, RemoteCompletion, RemotePiece
from sporelm.cli.remote.remote_params import RemoteParams
from sporelm.cli.remote.server_address import ServerAddress
from sporelm.cli.remote.sse_decoder import SseDecoder
from sporelm.errors import RemoteError

MAX_MODEL_LIST_BYTES = 16 << 20
MAX_MODEL_NAME_CHARS = 512
EVENT_STREAM = "text/event-stream"
# Request fields that some servers reject, which are then renamed or left out in all later requests.
COMPLETION_LENGTH = "max_completion_tokens"
STREAM_OPTIONS = "stream_options"


class RemoteServer:
    """An OpenAI-compatible server, and the model that answers."""

    def __init__(self, url: str, key: str | None = None, model: str | None = None) -> None:
        """Send no request yet. `key` is sent unchanged. Raises UsageError."""
        self.address = ServerAddress.parse(url)
        self.key = None if key is None else check_key(key)
        self.model = model
        self.is_model_named = model is not None
        self.changed_fields: set[str] = set()

    def list_models(self) -> list[str]:
        """Return the names of the server's models. Raises RemoteError."""
        status, headers, body = self._fetch("/models")
        if status != 200:
            raise self._error(status, headers, body)
        try:
            names = [each["id"] for each in json.loads(body)["data"]]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise RemoteError(
                f"{self.address} is not an OpenAI-compatible server: {self.address}/models is not a list of models"
            ) from None
        if not names or not all(isinstance(name, str) and 0 < len(name) <= MAX_MODEL_NAME_CHARS for name in names):
            raise RemoteError(f"{self.address} lists no usable models: name one as MODEL")
        return names

    def conversation(self, system: str | None = None) -> "RemoteConversation":
        """Start a conversation."""
        return RemoteConversation(self, [{"role": "system", "content": system}] if system else [])

    def wake(self, path: Path) -> "RemoteConversation":
        """Load a saved conversation. Raises RequestError."""
        return RemoteConversation(self, read_conversation(path))

    def stream_events(self, messages: list[dict[str, Any]], params: RemoteParams) -> Generator[str | None, None, None]:
        """Yield the events of a completion up to the last; None whenever nothing came for a moment.

        Raises RemoteError.
        """
        while True:
            exchange = self._exchange("/chat/completions", self._request_body(messages, params))
            with closing(exchange.receive()) as parts:
                head = yield from _read_head(parts)
                if head.status == 200:
                    yield from self._decode_events(head, parts)
                    exchange.is_complete = True
                    return
                body = yield from _read_body(parts, MAX_ERROR_BYTES)
            if not self._change_fields(head.status, body, params):
                raise self._error(head.status, head.headers, body)

    def _decode_events(
        self, head: ResponseHead, parts: Generator[ResponseHead | bytes | None, None, None]
    ) -> Generator[str | None, None, None]:
        content_type = (head.headers.get("content-type") or "").partition(";")[0].strip().lower()
        if content_type != EVENT_STREAM:
            received = clip(content_type, 60) or "a response without a type"
            raise RemoteError(f"{self.address} answers with {received} and not with a stream: is it OpenAI-compatible?")
        decoder = SseDecoder()
        for part in parts:
            if not isinstance(part, bytes):
                yield None
                continue
            for event in decoder.feed(part):
                yield event
                if event.strip() == DONE:
                    return
        yield from decoder.flush()

    def _request_body(self, messages: list[dict[str, Any]], params: RemoteParams) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "messages": messages, "stream": True, **params.as_fields()}
        if STREAM_OPTIONS not in self.changed_fields:
            body[STREAM_OPTIONS] = {"include_usage": True}
        if COMPLETION_LENGTH in self.changed_fields and "max_tokens" in body:
            body[COMPLETION_LENGTH] = body.pop("max_tokens")
        return body

    def _change_fields(self, status: int, body: bytes, params: RemoteParams) -> bool:
        """Return whether to repeat a rejected request with a field changed, as in all later requests."""
        if status not in (400, 422):
            return False
        possible = {STREAM_OPTIONS} | ({COMPLETION_LENGTH} if params.max_tokens is not None else set())
        change = next((each for each in sorted(possible - self.changed_fields) if each.encode() in body), None)
        self.changed_fields |= {change} if change else set()
        return change is not None

    def _error(self, status: int, headers: Mapping[str, str], body: bytes) -> RemoteError:
        return error_for_response(status, headers, body, self.address, key=self.key, is_model_named=self.is_model_named)

    def _exchange(self, path: str, body: dict[str, Any] | None = None) -> HttpExchange:
        headers = {"Accept": EVENT_STREAM if body else "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        if body is None:
            return HttpExchange(self.address, self.address.path + path, headers)
        headers["Content-Type"] = "application/json"
        return HttpExchange(self.address, self.address.path + path, headers, json.dumps(body).encode())

    def _fetch(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of a GET request."""
        with closing(self._exchange(path).receive()) as parts:
            head = _run_to_end(_read_head(parts))
            limit = MAX_MODEL_LIST_BYTES if head.status == 200 else MAX_ERROR_BYTES
            body = _run_to_end(_read_body(parts, limit))
        return head.status, head.headers, body


class RemoteConversation:
    """A conversation whose messages are all sent with each question; whether the server caches them is up to it."""

    is_asleep = False

    def __init__(self, server: RemoteServer, messages: list[dict[str, Any]]) -> None:
        self.server = server
        self.messages = messages

    def ask(
        self, text: str, params: RemoteParams, images: Sequence[bytes] = ()
    ) -> Generator[RemotePiece | ReasoningPiece, None, None]:
        """Say `text`, with the files of pictures, and yield the answer; a piece is empty while nothing comes.

        The last piece has the completion. Closing the iterator early stops the server; question and answer join the
        messages if there is any text. Raises RemoteError for an answer that fails, which keeps nothing of the turn.
        """
        messages = [*self.messages, {"role": "user", "content": make_content(text, images)}]
        completion = RemoteCompletion()
        try:
            with closing(self.server.stream_events(messages, params)) as events:
                for event in events:
                    if event is None:
                        yield RemotePiece("")
                    else:
                        yield from completion.add_event(event)
        except (GeneratorExit, KeyboardInterrupt):
            if completion.texts:
                self._append_answer(messages, completion)
            raise
        if not completion.is_complete:
            raise RemoteError(
                f"{self.server.address.origin} ended its stream in the middle of the answer, without [DONE]: "
                "the turn was dropped, ask again"
            )
        self._append_answer(messages, completion)
        yield RemotePiece("", completion)

    def _append_answer(self, messages: list[dict[str, Any]], completion: RemoteCompletion) -> None:
        """Append question and answer to the history, without reasoning."""
        self.messages = [*messages, {"role": "assistant", "content": completion.text}]

    def fork(self) -> "RemoteConversation":
        """Return a second conversation with the same messages."""
        return RemoteConversation(self.server, [dict(message) for message in self.messages])

    def save(self, path: Path) -> int:
        """Write the messages to a file and return its size in bytes. Raises RequestError."""
        return write_conversation(path, self.messages)

    def close(self) -> None:
        """Do nothing: no resources are held."""


def make_content(text: str, images: Sequence[bytes]) -> str | list[dict[str, Any]]:
    """Return the content of a message: the text, or OpenAI's parts with the pictures first."""
    if not images:
        return text
    from sporelm.vision.image_formats import detect_format

    urls = [f"data:image/{detect_format(data).lower()};base64,{b64encode(data).decode()}" for data in images]
    return [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": text}]


def _read_head(parts: Generator[ResponseHead | bytes | None, None, None]) -> Generator[None, None, ResponseHead]:
    for part in parts:
        if isinstance(part, ResponseHead):
            return part
        yield None
    raise RemoteError("the server sent nothing")


def _read_body(
    parts: Generator[ResponseHead | bytes | None, None, None], max_bytes: int
) -> Generator[None, None, bytes]:
    """Return the body, up to `max_bytes`."""
    body = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            body += part
        else:
            yield None
        if len(body) > max_bytes:
            break
    return bytes(body[:max_bytes])


def _run_to_end(generator: Generator[None, None, Any]) -> Any:
    """Run a generator to its end and return its result."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value
