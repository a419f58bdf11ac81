"""The events with which pages follow a conversation: its state, and the answer that is being written."""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field

from sporelm.serve.conversations.answer_job import AnswerJob
from sporelm.serve.conversations.conversation_schema import Json
from sporelm.serve.http.sse import encode_event

POSITION = re.compile(r"([0-9a-f]{32})\.(\d{1,9})\.(\d{1,9})")


@dataclass(eq=False)
class Channel:
    """The state of a conversation that its followers share.

    version      of the conversation, if this server has changed it; else 0
    is_starting  whether a job is being placed in the stored conversation
    """

    version: int = 0
    job: AnswerJob | None = None
    is_starting: bool = False
    is_deleted: bool = False
    listeners: set[asyncio.Event] = field(default_factory=set)

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being written or started."""
        return self.is_starting or self.job is not None

    def notify(self) -> None:
        """Wake all followers."""
        for listener in self.listeners:
            listener.set()


class AnswerFollower:
    """One follower of a conversation, and what it has been sent."""

    def __init__(self, channel: Channel, version: int) -> None:
        self.channel = channel
        self.version = version
        self.job: AnswerJob | None = None
        self.num_content = 0  # characters that were sent
        self.num_reasoning = 0
        self.waiting: Json = {}

    def state_event(self, last_event_id: str | None) -> bytes:
        """Return the first event. A follower that reconnects names the last event that it has received."""
        job = self.job = self.channel.job
        if job is None:
            return answer_event("state", {"version": self.version, "answer": None})
        self.version = max(self.version, job.version)
        match = POSITION.fullmatch(last_event_id or "")
        num_content, num_reasoning = job.lengths
        if match and match[1] == job.id and int(match[2]) <= num_content and int(match[3]) <= num_reasoning:
            self.num_content = int(match[2])
            self.num_reasoning = int(match[3])
            data = {"version": self.version, "answer": {"id": job.id}, "waiting": self._waiting_fields(job)}
            return answer_event("state", data)
        return self._answer_event("state", job)

    def new_events(self) -> list[bytes]:
        """Return all events since the last call."""
        events = []
        while True:
            if self.job is None and self.channel.job is not None:
                job = self.job = self.channel.job
                self.version = job.version
                events.append(self._answer_event("answer", job))
            if self.job is not None:
                events += self._delta_events(self.job)
            if self.job is None or not self.job.ended.is_set():
                break
            if not self.job.is_dropped:
                self.version = max(self.version, self.job.version)
                data = {"version": self.job.version, "answer": self.job.message}
                if self.job.error:
                    data["error"] = self.job.error
                events.append(answer_event("end", data))
            self.job = None
        if self.channel.version > self.version:
            self.version = self.channel.version
            events.append(answer_event("changed", {"version": self.version}))
        return events

    def _answer_event(self, name: str, job: AnswerJob) -> bytes:
        """Return an event with the whole answer so far."""
        self.num_content, self.num_reasoning = job.lengths
        data = {"version": self.version, "answer": job.message, "waiting": self._waiting_fields(job)}
        return answer_event(name, data, self._position(job))

    def _waiting_fields(self, job: AnswerJob) -> Json:
        """Return what happens before the first token, and for how many seconds; {} after the first token."""
        self.waiting = job.waiting
        return self.waiting and self.waiting | {"seconds": round(time.monotonic() - job.stats.started_at, 1)}

    def _delta_events(self, job: AnswerJob) -> list[bytes]:
        num_content, num_reasoning = job.lengths
        is_same = (num_content, num_reasoning) == (self.num_content, self.num_reasoning)
        if job.ended.is_set() or (is_same and self.waiting == job.waiting):
            return []
        data: Json = {"stats": job.message.get("stats", {}), "waiting": self._waiting_fields(job)}
        if num_content > self.num_content:
            data["content"] = job.message["content"][self.num_content :]
        if num_reasoning > self.num_reasoning:
            data["reasoning"] = job.message["reasoning"][self.num_reasoning :]
        self.num_content = num_content
        self.num_reasoning = num_reasoning
        return [answer_event("delta", data, self._position(job))]

    def _position(self, job: AnswerJob) -> str:
        return f"{job.id}.{self.num_content}.{self.num_reasoning}"


def answer_event(name: str, data: Json, event_id: str | None = None) -> bytes:
    """Return a server-sent event; its id encodes how much of the answer was sent."""
    head = b"" if event_id is None else b"id: " + event_id.encode() + b"\n"
    return head + encode_event(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"), name.encode())
