"""AnswerJobs: answers of the web chat as background jobs, which continue without a page and which any page can follow.

A job generates one message, the answer, of a stored conversation. Its text so far is stored every few seconds as an
interrupted answer, which is what a killed server leaves. Pages follow a conversation by server-sent events; an event's
id encodes how much of the answer was sent, so a client that reconnects gets only the rest.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from sporelm.errors import RequestError
from sporelm.serve.chat.image_parts import has_images
from sporelm.serve.conversations.answer_events import AnswerFollower, Channel, answer_event
from sporelm.serve.conversations.answer_job import (
    AnswerFailed,
    AnswerJob,
    AnswerPlacement,
    AnswerRefused,
    AnswerSource,
    check_answer_request,
    message_texts,
)
from sporelm.serve.conversations.conversation_schema import Json, TooLarge, check_message
from sporelm.serve.conversations.conversation_store import ConversationNotFound, ConversationStore
from sporelm.serve.shielded import shielded, spawn

MAX_RUNNING_PER_KEY = 16  # answers generated at a time
MAX_FOLLOWERS_PER_KEY = 64  # open streams of events
STORE_SECONDS = 2.5  # between two saves of a partial answer
SEND_SECONDS = 0.03  # between two events to one follower; text in between is batched
PING_SECONDS = 15.0  # of silence before a comment is sent, so that both ends detect a dead connection
log = logging.getLogger("sporelm.serve")


class AnswerJobs:
    """All answers that a server is writing for the web chat. To be used from one event loop."""

    def __init__(self, store: ConversationStore) -> None:
        self.store = store
        self.is_draining = False
        self.is_interrupted = False
        self._channels: dict[tuple[str, str], Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def num_followers(self) -> int:
        """Open streams of events."""
        return sum(len(channel.listeners) for channel in self._channels.values())

    def running_job(self, owner: str, conversation_id: str) -> AnswerJob | None:
        """Return the answer that is being written in a conversation."""
        channel = self._channels.get((owner, conversation_id))
        return channel.job if channel is not None else None

    async def conversation(self, owner: str, conversation_id: str) -> tuple[Json, AnswerJob | None]:
        """Return a conversation as it is stored and the answer that is being written into it, both of one moment.

        A file read before an answer ends, beside the state after it, would show a finished answer as interrupted. So
        the file is read again if an answer began or ended meanwhile.

        Raises ConversationNotFound.
        """
        while True:
            job = self.running_job(owner, conversation_id)
            conversation = await asyncio.to_thread(self.store.get, owner, conversation_id)
            channel = self._channels.get((owner, conversation_id))
            is_starting = channel is not None and channel.is_starting
            if not is_starting and self.running_job(owner, conversation_id) is job:
                return conversation, job

    async def start(self, owner: str, conversation_id: str, value: object, source: AnswerSource) -> AnswerJob:
        """Start or continue an answer, after storing its place in the conversation.

        `value` is {"id", "parent", "model"} for a new answer, {"id", "model", "continue": true} to continue one. A
        repeated request returns the running job.

        Raises AnswerRefused, InvalidConversation, ConversationNotFound, TooLarge, RequestError.
        """
        request = check_answer_request(value)
        channel = self._channels.get((owner, conversation_id), Channel())
        if channel.job is not None and channel.job.id == request["id"]:
            return channel.job
        self._check_may_start(owner, channel)
        self._channels[owner, conversation_id] = channel
        channel.is_starting = True  # before the first await, so that no second one starts
        placement = AnswerPlacement(request, self.store.limits)
        try:
            after = await shielded(asyncio.to_thread(self.store.update, owner, conversation_id, placement))
        finally:
            channel.is_starting = False
            self._release(owner, conversation_id)
        job = channel.job = placement.job
        assert job is not None
        self._channels[owner, conversation_id] = channel
        channel.version = job.version = after["version"]
        job.initial_lengths = job.lengths
        job.generation = asyncio.ensure_future(self._generate(owner, channel, job, source))
        task = spawn(self._supervise(owner, conversation_id, channel, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if channel.is_deleted or self.is_interrupted:
            job.is_dropped = channel.is_deleted
            job.cancel()
        channel.notify()
        return job

    def _check_may_start(self, owner: str, channel: Channel) -> None:
        """Raise AnswerRefused if no further answer can be started."""
        if channel.is_busy:
            raise AnswerRefused(409, "answer_running", "another answer of this conversation is being written")
        if self.is_draining:
            raise AnswerRefused(503, "ending", "the server is shutting down: it accepts no new requests")
        count = sum(each.is_busy for (other, _), each in self._channels.items() if other == owner)
        if count >= MAX_RUNNING_PER_KEY:
            raise AnswerRefused(
                429, "too_many_answers", f"{count} answers are being written: at most {MAX_RUNNING_PER_KEY} a key"
            )

    async def stop(self, owner: str, conversation_id: str, answer_id: str) -> bool:
        """Stop an answer and wait until its text is stored. Return False if it was not being written."""
        job = self.running_job(owner, conversation_id)
        if job is None or job.id != answer_id:
            return False
        job.is_stopped = True
        job.cancel()
        await job.ended.wait()
        return True

    def conversation_changed(self, owner: str, conversation_id: str, after: Mapping[str, Any]) -> None:
        """Notify the followers of a change by a page; an answer whose message was removed ends."""
        channel = self._channels.get((owner, conversation_id))
        if channel is None:
            return
        channel.version = max(channel.version, after["version"])
        if channel.job is not None and not any(each["id"] == channel.job.id for each in after["messages"]):
            self._drop(channel.job)
        channel.notify()

    def conversation_deleted(self, owner: str, conversation_id: str) -> None:
        """Notify the followers that a conversation was deleted, and end its answer."""
        channel = self._channels.get((owner, conversation_id))
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

    async def _generate(self, owner: str, channel: Channel, job: AnswerJob, source: AnswerSource) -> None:
        request = job.request
        if has_images(request.messages):
            try:
                messages = await asyncio.to_thread(self.store.with_images, owner, request.messages)
            except RequestError as reason:
                raise AnswerFailed({"code": "image_missing", "detail": str(reason)[:1000]}) from None
            request = replace(request, messages=messages)
        async with aclosing(source(request)) as increments:
            async for progress in increments:
                job.add(progress)
                channel.notify()

    async def _supervise(self, owner: str, conversation_id: str, channel: Channel, job: AnswerJob) -> None:
        """Store an answer until it has ended; then free its conversation for the next one, whatever went wrong."""
        assert job.generation is not None
        try:
            await self._store_until_end(owner, conversation_id, job, job.generation)
        except Exception as error:
            log.exception("unexpected %s while an answer of the web chat was stored", type(error).__name__)
            job.message |= {"finish": "error", "error": {"code": "internal_error"}}
        finally:
            job.generation.cancel()
            job.ended.set()
            channel.version = max(channel.version, job.version)
            channel.job = None
            channel.notify()
            self._release(owner, conversation_id)

    async def _store_until_end(
        self, owner: str, conversation_id: str, job: AnswerJob, work: "asyncio.Future[None]"
    ) -> None:
        """Store an answer while it is written, and when it has ended."""
        stored_lengths = job.initial_lengths
        error = None
        while not (await asyncio.wait({work}, timeout=STORE_SECONDS))[0]:
            if job.lengths != stored_lengths and error is None:
                stored_lengths = job.lengths
                error = await self._store(owner, conversation_id, job, is_new_version=False)
                if error is not None:
                    work.cancel()
        self._set_finish(job, work, error)
        if not job.is_dropped:
            error = await self._store(owner, conversation_id, job, is_new_version=True)
            if error is not None:
                job.message |= {"finish": "error", "error": error}

    def _set_finish(self, job: AnswerJob, work: "asyncio.Future[None]", error: Json | None) -> None:
        """Set the message's `finish` and `error`."""
        message = job.message
        if error is not None:
            message |= {"finish": "error", "error": error}
        elif work.cancelled():
            message["finish"] = "cancelled" if job.is_stopped else "interrupted"
        elif (reason := work.exception()) is not None:
            if not isinstance(reason, AnswerFailed):
                log.error("unexpected %s in an answer of the web chat", type(reason).__name__, exc_info=reason)
            error = reason.error if isinstance(reason, AnswerFailed) else {"code": "internal_error"}
            message |= {"finish": "error", "error": error}
        elif "finish" not in message:
            message["finish"] = "interrupted"
        before = job.before
        has_failed = message["finish"] in ("error", "interrupted")
        if before is not None and has_failed and message_texts(message) == message_texts(before):
            job.error = message.get("error")
            job.message = dict(before)  # a continuation that adds nothing leaves the answer as it was

    async def _store(self, owner: str, conversation_id: str, job: AnswerJob, *, is_new_version: bool) -> Json | None:
        """Store the answer so far; return an error if that fails. An answer whose message was removed is dropped."""

        def edit(conversation: Json) -> Json:
            message = check_message(job.stored_message(), self.store.limits)
            if not any(each["id"] == job.id for each in conversation["messages"]):
                raise ConversationNotFound("the message was deleted")
            return conversation | {
                "messages": [message if each["id"] == job.id else each for each in conversation["messages"]]
            }

        try:
            after = await asyncio.to_thread(
                self.store.update, owner, conversation_id, edit, is_new_version=is_new_version
            )
        except ConversationNotFound:
            self._drop(job)
        except TooLarge as reason:
            return {"code": "too_large", "detail": str(reason)[:1000]}
        except RequestError as reason:
            return {"code": "not_written", "detail": str(reason)[:1000]}
        else:
            job.version = after["version"]
        return None

    def _release(self, owner: str, conversation_id: str) -> None:
        """Forget a conversation that has neither followers nor a running answer."""
        channel = self._channels.get((owner, conversation_id))
        if channel is not None and not channel.is_busy and not channel.listeners:
            del self._channels[owner, conversation_id]

    async def follow(
        self, owner: str, conversation_id: str, last_event_id: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the server-sent events of a conversation, until it is deleted or the server ends. `last_event_id` is
        the id of the last event that the client has received.

        state    {"version", "answer", "waiting"}: the first event; `answer` is the message that is being written, or
                 null, or only its id where the client has a part of it, which deltas continue
        answer   {"version", "answer", "waiting"}: an answer was started
        delta    {"content", "reasoning", "stats", "waiting"}: the text since the last event
        end      {"version", "answer", "error"}: the answer as it is stored
        changed  {"version"}: a page has changed the conversation
        deleted  {}

        Raises AnswerRefused and ConversationNotFound before the first event.
        """
        count = sum(len(each.listeners) for (other, _), each in self._channels.items() if other == owner)
        if count >= MAX_FOLLOWERS_PER_KEY:
            raise AnswerRefused(
                429, "too_many_followers", f"{count} streams of events are open: at most {MAX_FOLLOWERS_PER_KEY} a key"
            )
        channel = self._channels.setdefault((owner, conversation_id), Channel())
        listener = asyncio.Event()
        channel.listeners.add(listener)
        try:
            version = (await asyncio.to_thread(self.store.get, owner, conversation_id))["version"]
            follower = AnswerFollower(channel, max(version, channel.version))
            yield follower.state_event(last_event_id)
            while True:
                listener.clear()
                for event in follower.new_events():
                    yield event
                sent_at = time.monotonic()
                if channel.is_deleted:
                    yield answer_event("deleted", {})
                    return
                if self.is_draining and not channel.is_busy:
                    return
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await listener.wait()
                    await asyncio.sleep(max(0.0, SEND_SECONDS - (time.monotonic() - sent_at)))
                except TimeoutError:
                    yield b":\n\n"
        finally:
            channel.listeners.discard(listener)
            self._release(owner, conversation_id)

    def drain(self) -> None:
        """Start no new answers. Streams of idle conversations end; running answers are finished."""
        self.is_draining = True
        for channel in self._channels.values():
            channel.notify()

    def interrupt(self) -> None:
        """End all answers; they are stored as interrupted."""
        self.is_draining = True
        self.is_interrupted = True
        for channel in self._channels.values():
            if channel.job is not None:
                channel.job.cancel()

    async def wait_until_finished(self) -> None:
        """Wait until no answer is being written."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
