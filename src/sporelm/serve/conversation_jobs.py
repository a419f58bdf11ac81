"""Answers of the web chat as background jobs of the server: they continue without a page, and any page can follow.

A job generates one message, the answer, of a stored conversation. Its text so far is stored every few seconds as an
interrupted answer, which is what a killed server leaves. Pages follow a conversation by server-sent events; an event's
id encodes how much of the answer was sent, so a client that reconnects gets only the rest.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sporelm.errors import RequestError, shown
from sporelm.serve.conversation_form import ID, BadConversation, Limits, TooMuch, checked_message, checked_tree
from sporelm.serve.conversation_turns import sampling_settings, turns
from sporelm.serve.conversations import ConversationNotFound, ConversationStore
from sporelm.serve.events import sse
from sporelm.serve.unbroken import begin, unbroken

Json = dict[str, Any]

MAX_RUNNING_PER_KEY = 16  # answers generated at a time
MAX_FOLLOWERS_PER_KEY = 64  # open streams of events
STORE_SECONDS = 2.5  # between two saves of a partial answer
SEND_SECONDS = 0.03  # between two events to one follower; text in between is batched
PING_SECONDS = 15.0  # of silence before a comment is sent, so that both ends detect a dead connection
MORE_TOKENS = 1024  # that a continued answer may add, unless the settings or its own limit say otherwise
RESUMABLE = ("length", "cancelled", "error", "interrupted")
WAITING = {"status": "waiting", "others": 0, "retry": 0}
PLACE = re.compile(r"([0-9a-f]{32})\.(\d{1,9})\.(\d{1,9})")
log = logging.getLogger("sporelm.serve")


class AnswerRefused(RequestError):
    """An answer cannot be started; `status` and `code` are those of the HTTP response."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class AnswerFailed(Exception):
    """An answer ended with an error, which is stored as {"code", parameters}."""

    def __init__(self, error: Json) -> None:
        super().__init__(error["code"])
        self.error = error


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """A request for an answer.

    messages    {"role", "content"}; with `continues`, the last one is the assistant's message to continue
    settings    sampling fields of a request, including `max_tokens`
    """

    model: str
    messages: list[Json]
    settings: Json
    continues: bool = False


class Progress(NamedTuple):
    """An increment of an answer. Counts are those of the whole request so far.

    status      before the first token: "loading", "busy" or "waiting"; `others` is the number of queued requests
    retry       seconds until a busy model is tried again
    finish      the finish reason, in the last increment
    """

    content: str = ""
    reasoning: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    tokens_per_s: float = 0.0
    finish: str | None = None
    status: str | None = None
    others: int = 0
    retry: float = 0.0


AnswerSource = Callable[[AnswerRequest], AsyncGenerator[Progress, None]]


class Speed:
    """Statistics of an answer; for a continued one, `before` has those of its first part."""

    def __init__(self, before: Mapping[str, Any]) -> None:
        self.before = {name: value for name, value in before.items() if type(value) in (int, float)}
        self.begun = time.monotonic()
        self.first = self.last = 0.0
        self.seen: Progress | None = None

    def add(self, progress: Progress) -> None:
        """Take in a piece."""
        if progress.content or progress.reasoning:
            self.last = time.monotonic()
            self.first = self.first or self.last
        if progress.prompt_tokens:
            self.seen = progress

    def stats(self) -> Json:
        """Return completion_tokens, first_token_s, tokens_per_s, prompt_tokens and cached_tokens, as far as known."""
        earlier, seen = int(self.before.get("completion_tokens", 0)), self.seen
        made = seen.completion_tokens if seen is not None else 0
        found: Json = {"completion_tokens": earlier + made}
        if self.first or "first_token_s" in self.before:
            found["first_token_s"] = self.before.get("first_token_s", round(self.first - self.begun, 4))
        if seen is not None and seen.tokens_per_s:
            found["tokens_per_s"] = seen.tokens_per_s
        elif made > 1 and self.last - self.first > 0.05:
            found["tokens_per_s"] = round((made - 1) / (self.last - self.first), 2)
        elif not made and "tokens_per_s" in self.before:
            found["tokens_per_s"] = self.before["tokens_per_s"]
        if seen is not None:
            found["prompt_tokens"] = max(0, seen.prompt_tokens - earlier)
            found["cached_tokens"] = min(seen.cached_tokens, found["prompt_tokens"])
        elif "prompt_tokens" in self.before:
            found |= {name: self.before.get(name, 0) for name in ("prompt_tokens", "cached_tokens")}
        return found


@dataclass(eq=False)
class AnswerJob:
    """An answer that is being written. `message` is as it will be stored, without `finish` until it ends."""

    message: Json
    request: AnswerRequest
    before: Json | None = None  # the message as it was, of one that goes on
    speed: Speed = field(default_factory=lambda: Speed({}))
    waiting: Json = field(default_factory=lambda: dict(WAITING))  # what happens before the first word
    error: Json | None = None  # of an answer that could not be gone on with, and stays as it was
    is_stopped: bool = False  # by its reader
    is_dropped: bool = False  # its message or conversation was deleted: nothing is stored
    version: int = 0  # of the conversation since its last change
    placed: tuple[int, int] = (0, 0)  # its lengths when it began
    work: "asyncio.Future[None] | None" = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        """The message's."""
        return str(self.message["id"])

    @property
    def lengths(self) -> tuple[int, int]:
        """Characters of content and of reasoning so far."""
        return len(self.message["content"]), len(self.message.get("reasoning", ""))

    def take(self, progress: Progress) -> None:
        """Take in something new."""
        if progress.status is not None:
            self.waiting = {"status": progress.status, "others": progress.others, "retry": progress.retry}
        if progress.reasoning:
            self.message["reasoning"] = self.message.get("reasoning", "") + progress.reasoning
        self.message["content"] += progress.content
        if progress.finish is not None:
            self.message["finish"] = progress.finish
        if progress.content or progress.reasoning:
            self.waiting = {}
        self.speed.add(progress)
        self.message["stats"] = self.speed.stats()

    def cancel(self) -> None:
        """End it; what came is settled by its supervisor."""
        if self.work is not None:
            self.work.cancel()

    def stored(self) -> Json:
        """The message as a file holds it: interrupted, as long as it has not ended."""
        return {"finish": "interrupted"} | self.message


@dataclass(eq=False)
class _Channel:
    """The state of a conversation that its followers share."""

    version: int = 0  # of the conversation, as far as this server has changed it; 0: not at all
    job: AnswerJob | None = None
    is_starting: bool = False  # a job, whose place is being stored
    is_deleted: bool = False
    listeners: set[asyncio.Event] = field(default_factory=set)

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being written, or is about to."""
        return self.is_starting or self.job is not None

    def notify(self) -> None:
        """Wake all who follow."""
        for listener in self.listeners:
            listener.set()


class AnswerJobs:
    """All answers that a server is writing for the web chat. To be used from one event loop."""

    def __init__(self, store: ConversationStore) -> None:
        self.store = store
        self.is_ending = self.is_broken_off = False
        self._channels: dict[tuple[str, str], _Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def num_followers(self) -> int:
        """Open streams of events."""
        return sum(len(channel.listeners) for channel in self._channels.values())

    def running(self, owner: str, identity: str) -> AnswerJob | None:
        """The answer that is being written in a conversation."""
        channel = self._channels.get((owner, identity))
        return channel.job if channel is not None else None

    async def start(self, owner: str, identity: str, value: object, source: AnswerSource) -> AnswerJob:
        """Begin to write an answer, or to go on with one, and store its place.

        `value` is {"id", "parent", "model"} for a new answer, {"id", "model", "continue": true} to go on with one. To
        ask for the same answer again returns the one that is being written.

        Raises AnswerRefused, BadConversation, ConversationNotFound, TooMuch, RequestError.
        """
        wish = _wish(value)
        channel = self._channels.get((owner, identity), _Channel())
        if channel.job is not None and channel.job.id == wish["id"]:
            return channel.job
        self._check_free(owner, channel)
        self._channels[owner, identity] = channel
        channel.is_starting = True  # before the first await, so that no second one begins
        placing = _Placing(wish, self.store.limits)
        try:
            after = await unbroken(asyncio.to_thread(self.store.revise, owner, identity, placing))
        finally:
            channel.is_starting = False
            self._release(owner, identity)
        job = channel.job = placing.job
        assert job is not None
        self._channels[owner, identity] = channel
        channel.version = job.version = after["version"]
        job.placed = job.lengths
        job.work = asyncio.ensure_future(self._work(channel, job, source))
        task = begin(self._supervise(owner, identity, channel, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if channel.is_deleted or self.is_broken_off:
            job.is_dropped = channel.is_deleted
            job.cancel()
        channel.notify()
        return job

    def _check_free(self, owner: str, channel: _Channel) -> None:
        """Raise AnswerRefused where no further answer can be begun."""
        if channel.is_busy:
            raise AnswerRefused(409, "answer_running", "another answer of this conversation is being written")
        if self.is_ending:
            raise AnswerRefused(503, "ending", "the server is ending: it takes no new requests")
        count = sum(each.is_busy for (whose, _), each in self._channels.items() if whose == owner)
        if count >= MAX_RUNNING_PER_KEY:
            raise AnswerRefused(
                429, "too_many_answers", f"{count} answers are being written: at most {MAX_RUNNING_PER_KEY} a key"
            )

    async def stop(self, owner: str, identity: str, answer: str) -> bool:
        """Stop an answer and wait until what came of it is stored. False if it was not being written."""
        job = self.running(owner, identity)
        if job is None or job.id != answer:
            return False
        job.is_stopped = True
        job.cancel()
        await job.ended.wait()
        return True

    def changed(self, owner: str, identity: str, after: Mapping[str, Any]) -> None:
        """A conversation was changed by a page: the others hear of it; an answer whose message has gone ends."""
        channel = self._channels.get((owner, identity))
        if channel is None:
            return
        channel.version = max(channel.version, after["version"])
        if channel.job is not None and not any(each["id"] == channel.job.id for each in after["messages"]):
            self._drop(channel.job)
        channel.notify()

    def deleted(self, owner: str, identity: str) -> None:
        """A conversation was deleted."""
        channel = self._channels.get((owner, identity))
        if channel is None:
            return
        channel.is_deleted = True
        if channel.job is not None:
            self._drop(channel.job)
        channel.notify()

    @staticmethod
    def _drop(job: AnswerJob) -> None:
        job.is_dropped = True
        job.cancel()

    async def _work(self, channel: _Channel, job: AnswerJob, source: AnswerSource) -> None:
        async with aclosing(source(job.request)) as news:
            async for progress in news:
                job.take(progress)
                channel.notify()

    async def _supervise(self, owner: str, identity: str, channel: _Channel, job: AnswerJob) -> None:
        """Store an answer until it has ended; then let others begin in its conversation, whatever went wrong."""
        assert job.work is not None
        try:
            await self._store_until_end(owner, identity, job, job.work)
        except Exception as error:
            log.exception("unexpected %s while an answer of the web chat was stored", type(error).__name__)
            job.message |= {"finish": "error", "error": {"code": "internal_error"}}
        finally:
            job.work.cancel()
            job.ended.set()
            channel.version = max(channel.version, job.version)
            channel.job = None
            channel.notify()
            self._release(owner, identity)

    async def _store_until_end(self, owner: str, identity: str, job: AnswerJob, work: "asyncio.Future[None]") -> None:
        """Store an answer while it is written and when it has ended, however it ends."""
        stored, error = job.placed, None
        while not (await asyncio.wait({work}, timeout=STORE_SECONDS))[0]:
            if job.lengths != stored and error is None:
                stored = job.lengths
                error = await self._store(owner, identity, job, is_new_version=False)
                if error is not None:
                    work.cancel()
        self._settle(job, work, error)
        if not job.is_dropped:
            failed = await self._store(owner, identity, job, is_new_version=True)
            if failed is not None:
                job.message |= {"finish": "error", "error": failed}

    def _settle(self, job: AnswerJob, work: "asyncio.Future[None]", error: Json | None) -> None:
        """Note in the message how it ended."""
        message = job.message
        if error is not None:
            message |= {"finish": "error", "error": error}
        elif work.cancelled():
            message["finish"] = "cancelled" if job.is_stopped else "interrupted"
        elif (reason := work.exception()) is not None:
            if not isinstance(reason, AnswerFailed):
                log.error("unexpected %s in an answer of the web chat", type(reason).__name__, exc_info=reason)
            found = reason.error if isinstance(reason, AnswerFailed) else {"code": "internal_error"}
            message |= {"finish": "error", "error": found}
        elif "finish" not in message:
            message["finish"] = "interrupted"
        before = job.before
        if before is not None and message["finish"] in ("error", "interrupted") and _texts(message) == _texts(before):
            job.error = message.get("error")  # it is no worse for having been asked to go on
            job.message = dict(before)

    async def _store(self, owner: str, identity: str, job: AnswerJob, *, is_new_version: bool) -> Json | None:
        """Store what there is of an answer; an error if that fails. One whose place has gone is dropped."""

        def edit(conversation: Json) -> Json:
            message = checked_message(job.stored(), self.store.limits)
            if not any(each["id"] == job.id for each in conversation["messages"]):
                raise ConversationNotFound("the message was deleted")
            return conversation | {
                "messages": [message if each["id"] == job.id else each for each in conversation["messages"]]
            }

        try:
            after = await asyncio.to_thread(self.store.revise, owner, identity, edit, is_new_version=is_new_version)
        except ConversationNotFound:
            self._drop(job)
        except TooMuch as reason:
            return {"code": "too_large", "detail": str(reason)[:1000]}
        except RequestError as reason:
            return {"code": "not_written", "detail": str(reason)[:1000]}
        else:
            job.version = after["version"]
        return None

    def _release(self, owner: str, identity: str) -> None:
        """Forget a conversation that nobody follows and in which nothing is written."""
        channel = self._channels.get((owner, identity))
        if channel is not None and not channel.is_busy and not channel.listeners:
            del self._channels[owner, identity]

    async def follow(self, owner: str, identity: str, place: str | None = None) -> AsyncGenerator[bytes, None]:
        """Server-sent events of a conversation, until it is deleted or the server ends. `place` is the id of the last
        event that the reader has.

        state    {"version", "answer", "waiting"}: first of all; `answer` is the message that is being written, or null,
                 or its id alone where the reader has a part of it, which deltas go on with
        answer   {"version", "answer", "waiting"}: an answer was begun
        delta    {"content", "reasoning", "stats", "waiting"}: what came since
        end      {"version", "answer", "error"}: the answer as it is stored
        changed  {"version"}: a page has changed the conversation
        deleted  {}

        Raises AnswerRefused and ConversationNotFound before the first event.
        """
        mine = sum(len(each.listeners) for (whose, _), each in self._channels.items() if whose == owner)
        if mine >= MAX_FOLLOWERS_PER_KEY:
            raise AnswerRefused(
                429, "too_many_followers", f"{mine} streams of events are open: at most {MAX_FOLLOWERS_PER_KEY} a key"
            )
        channel = self._channels.setdefault((owner, identity), _Channel())
        listener = asyncio.Event()
        channel.listeners.add(listener)
        try:
            version = (await asyncio.to_thread(self.store.get, owner, identity))["version"]
            reader = _Reader(channel, max(version, channel.version))
            yield reader.state(place)
            while True:
                listener.clear()
                for event in reader.news():
                    yield event
                sent = time.monotonic()
                if channel.is_deleted:
                    yield _event("deleted", {})
                    return
                if self.is_ending and not channel.is_busy:
                    return
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await listener.wait()
                    await asyncio.sleep(max(0.0, SEND_SECONDS - (time.monotonic() - sent)))
                except TimeoutError:
                    yield b":\n\n"
        finally:
            channel.listeners.discard(listener)
            self._release(owner, identity)

    def drain(self) -> None:
        """Take nothing new. Streams in which nothing is written end; answers are finished."""
        self.is_ending = True
        for channel in self._channels.values():
            channel.notify()

    def break_off(self) -> None:
        """End all answers; they are stored as interrupted."""
        self.is_ending = self.is_broken_off = True
        for channel in self._channels.values():
            if channel.job is not None:
                channel.job.cancel()

    async def finished(self) -> None:
        """Wait until no answer is being written."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


class _Reader:
    """The state of one follower: what it has been sent."""

    def __init__(self, channel: _Channel, version: int) -> None:
        self.channel, self.version = channel, version
        self.job: AnswerJob | None = None
        self.content = self.reasoning = 0
        self.waiting: Json = {}

    def state(self, place: str | None) -> bytes:
        """The first event."""
        job = self.job = self.channel.job
        if job is None:
            return _event("state", {"version": self.version, "answer": None})
        self.version = max(self.version, job.version)
        found = PLACE.fullmatch(place or "")
        content, reasoning = job.lengths
        if found and found[1] == job.id and int(found[2]) <= content and int(found[3]) <= reasoning:
            self.content, self.reasoning = int(found[2]), int(found[3])
            return _event("state", {"version": self.version, "answer": {"id": job.id}, "waiting": self._waits(job)})
        return self._whole("state", job)

    def news(self) -> list[bytes]:
        """All events since the last call."""
        found = []
        while True:
            if self.job is None and self.channel.job is not None:
                job = self.job = self.channel.job
                self.version = job.version
                found.append(self._whole("answer", job))
            if self.job is not None:
                found += self._delta(self.job)
            if self.job is None or not self.job.ended.is_set():
                break
            if not self.job.is_dropped:
                self.version = max(self.version, self.job.version)
                told = {"version": self.job.version, "answer": self.job.message}
                found.append(_event("end", told | ({"error": self.job.error} if self.job.error else {})))
            self.job = None
        if self.channel.version > self.version:
            self.version = self.channel.version
            found.append(_event("changed", {"version": self.version}))
        return found

    def _whole(self, name: str, job: AnswerJob) -> bytes:
        self.content, self.reasoning = job.lengths
        told = {"version": self.version, "answer": job.message, "waiting": self._waits(job)}
        return _event(name, told, self._place(job))

    def _waits(self, job: AnswerJob) -> Json:
        """What happens before the first word, for how many seconds now; nothing once it has come."""
        self.waiting = job.waiting
        return self.waiting and self.waiting | {"seconds": round(time.monotonic() - job.speed.begun, 1)}

    def _delta(self, job: AnswerJob) -> list[bytes]:
        content, reasoning = job.lengths
        if job.ended.is_set() or (
            (content, reasoning) == (self.content, self.reasoning) and self.waiting == job.waiting
        ):
            return []
        told: Json = {"stats": job.message.get("stats", {}), "waiting": self._waits(job)}
        if content > self.content:
            told["content"] = job.message["content"][self.content :]
        if reasoning > self.reasoning:
            told["reasoning"] = job.message["reasoning"][self.reasoning :]
        self.content, self.reasoning = content, reasoning
        return [_event("delta", told, self._place(job))]

    def _place(self, job: AnswerJob) -> str:
        return f"{job.id}.{self.content}.{self.reasoning}"


class _Placing:
    """The change of a stored conversation with which an answer begins. When it was made, `job` is the answer's."""

    def __init__(self, wish: Json, limits: Limits) -> None:
        self.wish, self.limits = wish, limits
        self.job: AnswerJob | None = None

    def __call__(self, conversation: Json) -> Json:
        if conversation["kind"] != "chat":
            raise BadConversation("a conversation of kind completion is a single text and has no answers")
        known = {message["id"]: message for message in conversation["messages"]}
        there = known.get(self.wish["id"])
        settings = sampling_settings(conversation["settings"])
        if self.wish["continue"]:
            job = self._continued(conversation, there, settings)
            current = conversation["current"]
        else:
            job = self._new(conversation, there, known.get(self.wish["parent"]), settings)
            current = job.id
        stored = checked_message(job.stored(), self.limits)
        messages = [stored if each["id"] == job.id else each for each in conversation["messages"]]
        if there is None:
            messages.append(stored)
        self.job = job
        return conversation | {"messages": checked_tree(messages, self.limits), "current": current}

    def _new(self, conversation: Json, there: Json | None, parent: Json | None, settings: Json) -> AnswerJob:
        """An answer to a stored question."""
        if there is not None:
            raise AnswerRefused(409, "answer_exists", "a message with this id already exists")
        if parent is None or parent["role"] != "user":
            raise AnswerRefused(409, "no_question", "the message to answer is not stored. Save it first")
        message = {
            "id": self.wish["id"],
            "parent": parent["id"],
            "role": "assistant",
            "content": "",
            "model": self.wish["model"],
            "created": time.time_ns() // 1_000_000,
        }
        messages = turns(conversation, parent["id"])
        return AnswerJob(message, AnswerRequest(model=self.wish["model"], messages=messages, settings=settings))

    def _continued(self, conversation: Json, there: Json | None, settings: Json) -> AnswerJob:
        """An answer that is gone on with, without what it ended with."""
        is_last = there is not None and all(each["parent"] != there["id"] for each in conversation["messages"])
        if there is None or there["role"] != "assistant" or not there["content"].strip() or not is_last:
            raise AnswerRefused(409, "not_resumable", "only the last answer of a branch, with text, can be continued")
        if there.get("finish") not in RESUMABLE:
            raise AnswerRefused(409, "not_resumable", "the answer is complete: there is nothing to continue")
        stats = there.get("stats", {})
        if "max_tokens" not in settings:
            was_cut, count = there.get("finish") == "length", stats.get("completion_tokens")
            settings = settings | {"max_tokens": count if was_cut and type(count) is int and count > 0 else MORE_TOKENS}
        last = {"role": "assistant", "content": there["content"].lstrip()}
        if there.get("reasoning"):
            last["reasoning_content"] = there["reasoning"]
        messages = [*turns(conversation, there["parent"]), last]
        request = AnswerRequest(model=self.wish["model"], messages=messages, settings=settings, continues=True)
        kept = {name: part for name, part in there.items() if name not in ("finish", "error")}
        return AnswerJob(kept | {"model": self.wish["model"]}, request, before=there, speed=Speed(stats))


def _wish(value: object) -> Json:
    """The checked body of a request for an answer. Raises BadConversation."""
    if not isinstance(value, dict):
        raise BadConversation(f"the body is {shown(value)}: it must be an object")
    unknown = sorted(set(value) - {"id", "parent", "model", "continue"})
    if unknown:
        raise BadConversation(
            f"the body has the unknown field {shown(unknown[0])}: known are continue, id, model, parent"
        )
    is_continued = value.get("continue", False)
    if not isinstance(is_continued, bool):
        raise BadConversation(f"continue is {shown(is_continued)}: it must be true or false")
    for name in ("id",) if is_continued else ("id", "parent"):
        given = value.get(name)
        if not isinstance(given, str) or not ID.fullmatch(given):
            raise BadConversation(f"{name} is {shown(given)}: it must be 32 hexadecimal digits")
    model = value.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= 500:
        raise BadConversation(f"model is {shown(model)}: it must be the name of a model")
    return {"id": value["id"], "parent": value.get("parent"), "model": model, "continue": is_continued}


def _texts(message: Mapping[str, Any]) -> tuple[str, str]:
    return message["content"], message.get("reasoning", "")


def _event(name: str, value: Json, identity: str | None = None) -> bytes:
    head = b"" if identity is None else b"id: " + identity.encode() + b"\n"
    return head + sse(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"), name.encode())
