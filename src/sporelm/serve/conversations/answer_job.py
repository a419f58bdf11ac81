"""AnswerJob: one answer of the web chat that the server is writing, and how it is placed in its conversation."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sporelm.errors import RequestError, safe_repr
from sporelm.serve.conversations.answer_settings import request_fields
from sporelm.serve.conversations.answer_stats import AnswerStats, Progress
from sporelm.serve.conversations.conversation_schema import (
    ConversationLimits,
    InvalidConversation,
    Json,
    check_id,
    check_message,
    check_object,
    check_tree,
)
from sporelm.serve.conversations.message_branches import prompt_messages

DEFAULT_MORE_TOKENS = 1024  # that a continued answer may add, unless the settings or its own limit say otherwise
RESUMABLE = ("length", "cancelled", "error", "interrupted")


class AnswerRefused(RequestError):
    """An answer cannot be started; `status` and `code` are those of the HTTP response."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class AnswerFailed(Exception):
    """An answer ended with an error, which is stored as {"code", parameters}."""

    def __init__(self, error: Json) -> None:
        super().__init__(error["code"])
        self.error = error


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """A request for an answer.

    messages       {"role", "content"}; with `continue_last`, the last one is the assistant's message to continue. The
                   content of a question with pictures is a list of parts
    settings       sampling fields of a request, including `max_tokens`
    """

    model: str
    messages: list[Json]
    settings: Json
    continue_last: bool = False


AnswerSource = Callable[[AnswerRequest], AsyncGenerator[Progress, None]]


@dataclass(eq=False)
class AnswerJob:
    """An answer that is being written.

    message          as it will be stored, without `finish` until it ends
    before           the message before it was continued
    waiting          what happens before the first token
    error            of an answer that could not be continued, and stays as it was
    is_stopped       by a client
    is_dropped       whether its message or conversation was deleted: nothing is stored
    version          of the conversation since the job's last change
    initial_lengths  its lengths when it started
    """

    message: Json
    request: AnswerRequest
    before: Json | None = None
    stats: AnswerStats = field(default_factory=lambda: AnswerStats({}))
    waiting: Json = field(default_factory=lambda: {"status": "waiting", "others": 0, "retry": 0})
    error: Json | None = None
    is_stopped: bool = False
    is_dropped: bool = False
    version: int = 0
    initial_lengths: tuple[int, int] = (0, 0)
    generation: "asyncio.Future[None] | None" = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def id(self) -> str:
        """The id of its message."""
        return str(self.message["id"])

    @property
    def lengths(self) -> tuple[int, int]:
        """Characters of content and of reasoning so far."""
        return len(self.message["content"]), len(self.message.get("reasoning", ""))

    def add(self, progress: Progress) -> None:
        """Add an increment."""
        if progress.status is not None:
            self.waiting = {"status": progress.status, "others": progress.others, "retry": progress.retry}
        if progress.reasoning:
            self.message["reasoning"] = self.message.get("reasoning", "") + progress.reasoning
        self.message["content"] += progress.content
        if progress.finish is not None:
            self.message["finish"] = progress.finish
        if progress.content or progress.reasoning:
            self.waiting = {}
        self.stats.add(progress)
        self.message["stats"] = self.stats.stats()

    def cancel(self) -> None:
        """Stop the generation; its supervisor stores the text so far."""
        if self.generation is not None:
            self.generation.cancel()

    def stored_message(self) -> Json:
        """Return the message for the file: interrupted, as long as it has not ended."""
        return {"finish": "interrupted"} | self.message


class AnswerPlacement:
    """The change of a stored conversation with which an answer starts. Once it was applied, `job` is the answer's."""

    def __init__(self, request: Json, limits: ConversationLimits) -> None:
        """`request` is the result of `check_answer_request`."""
        self.request = request
        self.limits = limits
        self.job: AnswerJob | None = None

    def __call__(self, conversation: Json) -> Json:
        if conversation["kind"] != "chat":
            raise InvalidConversation("a conversation of kind completion is a single text and has no answers")
        by_id = {message["id"]: message for message in conversation["messages"]}
        existing = by_id.get(self.request["id"])
        settings = request_fields(conversation["settings"])
        if self.request["continue"]:
            job = self._continued_answer(conversation, existing, settings)
            current = conversation["current"]
        else:
            job = self._new_answer(conversation, existing, by_id.get(self.request["parent"]), settings)
            current = job.id
        stored = check_message(job.stored_message(), self.limits)
        messages = [stored if each["id"] == job.id else each for each in conversation["messages"]]
        if existing is None:
            messages.append(stored)
        self.job = job
        return conversation | {"messages": check_tree(messages, self.limits), "current": current}

    def _new_answer(self, conversation: Json, existing: Json | None, parent: Json | None, settings: Json) -> AnswerJob:
        """Return the job of an answer to a stored question."""
        if existing is not None:
            raise AnswerRefused(409, "answer_exists", "a message with this id already exists")
        if parent is None or parent["role"] != "user":
            raise AnswerRefused(409, "no_question", "the message to answer is not stored. Save it first")
        message = {
            "id": self.request["id"],
            "parent": parent["id"],
            "role": "assistant",
            "content": "",
            "model": self.request["model"],
            "created": time.time_ns() // 1_000_000,
        }
        messages = prompt_messages(conversation, parent["id"])
        return AnswerJob(message, AnswerRequest(model=self.request["model"], messages=messages, settings=settings))

    def _continued_answer(self, conversation: Json, existing: Json | None, settings: Json) -> AnswerJob:
        """Return the job of a stored answer that is continued."""
        is_last = existing is not None and all(each["parent"] != existing["id"] for each in conversation["messages"])
        if existing is None or existing["role"] != "assistant" or not existing["content"].strip() or not is_last:
            raise AnswerRefused(409, "not_resumable", "only the last answer of a branch, with text, can be continued")
        if existing.get("finish") not in RESUMABLE:
            raise AnswerRefused(409, "not_resumable", "the answer is complete: there is nothing to continue")
        stats = existing.get("stats", {})
        if "max_tokens" not in settings:
            num_tokens = stats.get("completion_tokens")
            has_limit = existing.get("finish") == "length" and type(num_tokens) is int and num_tokens > 0
            settings = settings | {"max_tokens": num_tokens if has_limit else DEFAULT_MORE_TOKENS}
        last = {"role": "assistant", "content": existing["content"].lstrip()}
        if existing.get("reasoning"):
            last["reasoning_content"] = existing["reasoning"]
        messages = [*prompt_messages(conversation, existing["parent"]), last]
        request = AnswerRequest(model=self.request["model"], messages=messages, settings=settings, continue_last=True)
        message = {name: value for name, value in existing.items() if name not in ("finish", "error")}
        message["model"] = self.request["model"]
        return AnswerJob(message, request, before=existing, stats=AnswerStats(stats))


def check_answer_request(value: object) -> Json:
    """Return {"id", "parent", "model", "continue"} of a request for an answer. Raises InvalidConversation."""
    request = check_object(value, "the body", {"id", "parent", "model", "continue"})
    is_continued = request.get("continue", False)
    if not isinstance(is_continued, bool):
        raise InvalidConversation(f"continue is {safe_repr(is_continued)}: it must be true or false", "continue")
    for name in ("id",) if is_continued else ("id", "parent"):
        check_id(request.get(name), name, ConversationLimits())
    model = request.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= 500:
        raise InvalidConversation(f"model is {safe_repr(model)}: it must be the name of a model", "model")
    return {"id": request["id"], "parent": request.get("parent"), "model": model, "continue": is_continued}


def message_texts(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return a message's content and reasoning."""
    return message["content"], message.get("reasoning", "")
