"""A server that is talked with: its models, its answers, and the conversations that are kept here."""

import json
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from sporelm.cli.remote import conversation_file
from sporelm.cli.remote.address import Address
from sporelm.cli.remote.answer import DONE, Piece, RemoteAnswer
from sporelm.cli.remote.events import Events
from sporelm.cli.remote.exchange import Exchange, Head
from sporelm.cli.remote.key import checked
from sporelm.cli.remote.refusals import LONGEST_BODY, clipped, refusal
from sporelm.cli.remote.values import RemoteParams
from sporelm.cli.sessions import Thought
from sporelm.errors import RemoteError

LONGEST_LIST = 16 << 20  # bytes of a list of models
LONGEST_NAME = 512  # characters of a model's name
STREAM = "text/event-stream"
# What some servers refuse, by the word with which they do -> how the request is changed, once and for all.
OTHER_LENGTH, NO_USAGE = "max_completion_tokens", "stream_options"


class RemoteServer:
    """An OpenAI-compatible server, and the model of it that answers."""

    def __init__(self, url: str, key: str | None = None, model: str | None = None) -> None:
        """Nothing is asked yet. `key` is sent as it is. Raises UsageError."""
        self.address = Address.of(url)
        self.key = None if key is None else checked(key)
        self.model = model
        self.named = model is not None
        self.changes: set[str] = set()

    def models(self) -> list[str]:
        """The names of its models. Raises RemoteError."""
        status, head, body = self._whole("/models")
        if status != 200:
            raise self._refusal(status, head, body)
        try:
            listed = json.loads(body)["data"]
            names = [each["id"] for each in listed]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise RemoteError(
                f"{self.address} is no OpenAI-compatible server: {self.address}/models is no list of models"
            ) from None
        if not names or not all(isinstance(name, str) and 0 < len(name) <= LONGEST_NAME for name in names):
            raise RemoteError(f"{self.address} lists no models that can be asked for: name one as MODEL")
        return names

    def conversation(self, system: str | None = None) -> "RemoteConversation":
        """A conversation that begins."""
        return RemoteConversation(self, [{"role": "system", "content": system}] if system else [])

    def wake(self, path: Path) -> "RemoteConversation":
        """A conversation that was saved. Raises RequestError."""
        return RemoteConversation(self, conversation_file.read(path))

    def answer(self, messages: list[dict[str, str]], params: RemoteParams) -> Generator[str | None, None, None]:
        """The events of an answer up to the last; None after each moment in which none came. Raises RemoteError."""
        while True:
            exchange = self._exchange("/chat/completions", self._body(messages, params))
            with closing(exchange.parts()) as parts:
                head = yield from _head(parts)
                if head.status == 200:
                    yield from self._events(head, parts)
                    exchange.is_whole = True
                    return
                body = yield from _rest(parts, LONGEST_BODY)
            if not self._changed(head.status, body, params):
                raise self._refusal(head.status, head.headers, body)

    def _events(
        self, head: Head, parts: Generator[Head | bytes | None, None, None]
    ) -> Generator[str | None, None, None]:
        kind = (head.headers.get("content-type") or "").partition(";")[0].strip().lower()
        if kind != STREAM:
            told = clipped(kind, 60) or "something of no type"
            raise RemoteError(f"{self.address} answers with {told} and not with a stream: is it OpenAI-compatible?")
        events = Events()
        for part in parts:
            if not isinstance(part, bytes):
                yield None
                continue
            for event in events.feed(part):
                yield event
                if event.strip() == DONE:
                    return
        yield from events.end()

    def _body(self, messages: list[dict[str, str]], params: RemoteParams) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "messages": messages, "stream": True, **params.given()}
        if NO_USAGE not in self.changes:
            body["stream_options"] = {"include_usage": True}
        if OTHER_LENGTH in self.changes and "max_tokens" in body:
            body[OTHER_LENGTH] = body.pop("max_tokens")
        return body

    def _changed(self, status: int, body: bytes, params: RemoteParams) -> bool:
        """Whether a request that was refused is to be sent in another way, which is then kept to."""
        if status not in (400, 422):
            return False
        may = {NO_USAGE} | ({OTHER_LENGTH} if params.max_tokens is not None else set())
        change = next((each for each in sorted(may - self.changes) if each.encode() in body), None)
        self.changes |= {change} if change else set()
        return change is not None

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> RemoteError:
        return refusal(status, headers, body, self.address, key=self.key, named=self.named)

    def _exchange(self, path: str, body: dict[str, Any] | None = None) -> Exchange:
        headers = {"Accept": STREAM if body else "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        if body is None:
            return Exchange(self.address, self.address.path + path, headers)
        headers["Content-Type"] = "application/json"
        return Exchange(self.address, self.address.path + path, headers, json.dumps(body).encode())

    def _whole(self, path: str) -> tuple[int, Any, bytes]:
        """Status, headers and body of what is read at once."""
        with closing(self._exchange(path).parts()) as parts:
            head = _waited(_head(parts))
            body = _waited(_rest(parts, LONGEST_LIST if head.status == 200 else LONGEST_BODY))
        return head.status, head.headers, body


class RemoteConversation:
    """Messages, which are sent whole with each question: what the server keeps of them is its own matter."""

    is_asleep = False

    def __init__(self, server: RemoteServer, messages: list[dict[str, str]]) -> None:
        self.server = server
        self.messages = messages

    def ask(self, text: str, params: RemoteParams) -> Generator[Piece | Thought, None, None]:
        """Say `text` and yield the answer piece by piece, empty ones while nothing comes; the last has the answer.

        Closing the iterator early ends the answer on the server; question and answer join the messages if anything was
        said. Raises RemoteError for an answer that fails: nothing of the turn is kept.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = RemoteAnswer()
        try:
            with closing(self.server.answer(messages, params)) as events:
                for event in events:
                    if event is None:
                        yield Piece("")
                    else:
                        yield from answer.take(event)
        except (GeneratorExit, KeyboardInterrupt):
            if answer.said:
                self.keep(messages, answer)
            raise
        if not answer.is_whole:
            raise RemoteError(
                f"{self.server.address.origin} ended its stream in the middle of the answer, without [DONE]: "
                "the turn was not kept, ask again"
            )
        self.keep(messages, answer)
        yield Piece("", answer)

    def keep(self, messages: list[dict[str, str]], answer: RemoteAnswer) -> None:
        """Take a question and what was said into the history; thoughts are not sent back."""
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]

    def fork(self) -> "RemoteConversation":
        return RemoteConversation(self.server, [dict(message) for message in self.messages])

    def save(self, path: Path) -> int:
        """Write the messages to a file; its bytes. Raises RequestError."""
        return conversation_file.write(path, self.messages)

    def close(self) -> None:
        """Nothing is held anywhere."""


def _head(parts: Generator[Head | bytes | None, None, None]) -> Generator[None, None, Head]:
    for part in parts:
        if isinstance(part, Head):
            return part
        yield None
    raise RemoteError("the server sent nothing")


def _rest(parts: Generator[Head | bytes | None, None, None], most: int) -> Generator[None, None, bytes]:
    """The body up to `most` bytes."""
    body = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            body += part
        else:
            yield None
        if len(body) > most:
            break
    return bytes(body[:most])


def _waited(steps: Generator[None, None, Any]) -> Any:
    """What a generator returns in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
