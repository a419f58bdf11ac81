"""What goes wrong, as HTTP says it: a status, a code, the engine's own message, in the shape of each API."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sporelm.errors import (
    BackendError,
    ContextOverflow,
    MemoryShortage,
    ModelError,
    QueueFull,
    RequestError,
    SporeError,
    UnsupportedModel,
    thread_shortage,
)

ENDING = (408, 413, 431)  # after these the connection is closed: what is still on its way is not read
RETRY_SECONDS = 2  # what those are told who must come again
# An absolute path of two parts or more, of Unix or of Windows; its last part may be told.
_PATH = re.compile(r"(?<![\w.:/#~\\-])(?:[A-Za-z]:[\\/]|\\\\|/)(?:[^\s'\":;,()\\/]+[\\/])+([^\s'\":;,()\\/]*)")
log = logging.getLogger("sporelm.serve")


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is answered with an error.

    kind     the class of error in OpenAI's words: invalid_request_error, authentication_error, ...
    code     what exactly, for programs
    detail   a number that the session API puts beside its status
    more     further fields of the error object, or of the session API's body
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    param: str | None = None
    detail: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)


def without_paths(text: str) -> str:
    """A text with only the last part of each path that is in it."""
    return _PATH.sub(lambda found: found[1] or "...", text)


def refusal_of(error: BaseException) -> Refusal:
    """How an error is answered. What is no fault of the request is logged; what nobody foresaw is told without its
    words, the rest without paths."""
    if isinstance(error, Refusal):
        return error
    error = thread_shortage(error) or error
    message = str(error)
    if isinstance(error, SporeError) and not isinstance(error, RequestError):
        log.error("%s: %s", type(error).__name__, message)
        message = without_paths(message)
    again = {"retry-after": str(RETRY_SECONDS)}
    if isinstance(error, QueueFull):
        return Refusal(429, message, "rate_limit_error", "queue_full", again)
    if isinstance(error, ContextOverflow):
        return Refusal(400, overflow(error), code="context_length_exceeded", more=overflow_numbers(error))
    if isinstance(error, RequestError | UnsupportedModel):
        return Refusal(400, message)
    if isinstance(error, MemoryShortage):
        return Refusal(503, message, "server_error", "memory_shortage", again)
    if isinstance(error, BackendError):
        return Refusal(503, message, "server_error", "engine_failed", again)
    if isinstance(error, ModelError):
        return Refusal(500, message, "server_error", "model_unusable")
    if isinstance(error, SporeError):
        return Refusal(500, message, "server_error")
    log.error("unexpected %s", type(error).__name__, exc_info=error)
    return Refusal(500, "the server failed at this request; its log says why", "server_error", "internal_error")


def overflow(error: ContextOverflow, *, rolling: bool = False) -> str:
    """What is too long, and what a client can do; `rolling`: its API has the field `roll`."""
    if not error.fact:
        return str(error)
    told = f"{error.fact}: shorten it"
    if rolling and error.rolls:
        told += ', or send "roll": true, with which the window rolls on'
    if error.larger:
        told += f"; whoever runs the server can raise its max_context, up to {error.larger} for this model"
    return told


def overflow_numbers(error: ContextOverflow) -> dict[str, int]:
    """Return the tokens of a prompt that is too long and those that the context holds, under llama-server's names;
    nothing where the text was refused before it was tokenized."""
    return {"n_prompt_tokens": error.tokens, "n_ctx": error.context} if error.tokens else {}


Shape = Callable[[Refusal], dict[str, Any]]


def openai_shape(refusal: Refusal) -> dict[str, Any]:
    """{"error": {"message", "type", "param", "code"}}, and further fields in the error."""
    return {
        "error": {
            "message": refusal.message,
            "type": refusal.kind,
            "param": refusal.param,
            "code": refusal.code,
            **refusal.more,
        }
    }


_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_shape(refusal: Refusal) -> dict[str, Any]:
    """{"type": "error", "error": {"type", "message"}}, and further fields in the error."""
    kind = _ANTHROPIC.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.message, **refusal.more}}


def ollama_shape(refusal: Refusal) -> dict[str, Any]:
    """{"error": "..."}, and further fields beside it."""
    return {"error": refusal.message, **refusal.more}


def session_shape(refusal: Refusal) -> dict[str, Any]:
    """{"status", "code", "message"}, and what else a status has."""
    return {"status": refusal.status, "code": refusal.detail, "message": refusal.message, **refusal.more}


def shape_for(path: str) -> Shape:
    """The shape of errors at a path, for those that happen before a route is found."""
    if path.startswith("/api/") and not path.startswith("/api/ui/"):
        return ollama_shape
    if path.startswith("/v1/messages"):
        return anthropic_shape
    return session_shape if path in ("/infer", "/cancel", "/fork", "/drop") else openai_shape
