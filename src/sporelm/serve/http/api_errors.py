"""API errors: a status, a code and a message, in the format of each API."""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sporelm.errors import (
    BackendError,
    ContextOverflow,
    MemoryShortage,
    ModelError,
    ModelNotFound,
    QueueFull,
    RequestError,
    SporeError,
    UnsupportedModel,
    thread_shortage,
)
from sporelm.serve.http.path_redaction import redact_paths, replace_paths

CLOSING_STATUSES = (408, 413, 431)  # the connection is closed after these: the rest of the body is not read
RETRY_SECONDS = 2  # the Retry-After header of errors that pass
TEXT_PARAMETERS = ("messages", "prompt", "input", "documents")  # one of these is at fault where a prompt is too long
_PARAMETER = re.compile(r"(?:an? \w+ of )?([a-z_]+)((?:\[\d+\]|\.[a-z_]+)*)(?=[ :])")
log = logging.getLogger("sporelm.serve")


@dataclass(eq=False)
class ApiError(Exception):
    """An error response to a request.

    error_type    the class of error in OpenAI's terms: invalid_request_error, authentication_error, ...
    code          the exact cause, for programs
    param         the field of the body that is at fault
    session_code  the number beside the status in errors of the session API
    extra_fields  further fields of the error object, or of the session API's body
    """

    status: int
    message: str
    error_type: str = "invalid_request_error"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    param: str | None = None
    session_code: int = 0
    extra_fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)


def api_error_from(error: BaseException) -> ApiError:
    """Return the response to an error.

    Errors that the request did not cause are logged, and their paths are redacted. The message of an unexpected error
    is for the log alone.
    """
    if isinstance(error, ApiError):
        return error
    error = thread_shortage(error) or error
    message = str(error)
    if isinstance(error, SporeError) and not isinstance(error, RequestError):
        log.error("%s: %s", type(error).__name__, message)
        message = redact_paths(message)
    if isinstance(error, QueueFull):
        return ApiError(429, message, "rate_limit_error", "queue_full", {"retry-after": str(RETRY_SECONDS)})
    if isinstance(error, ContextOverflow):
        fields = overflow_fields(error)
        return ApiError(400, overflow_message(error), code="context_length_exceeded", extra_fields=fields)
    if isinstance(error, RequestError | UnsupportedModel):
        return ApiError(400, message)
    if isinstance(error, SporeError):
        return _server_error(error, message, "model_unusable" if isinstance(error, ModelError) else None)
    log.error("unexpected %s", type(error).__name__, exc_info=error)
    return ApiError(500, "internal error: the request failed. See the server's log.", "server_error", "internal_error")


def model_load_error(name: str, paths: Mapping[str, str], error: SporeError) -> ApiError:
    """Return the response where a model cannot be loaded. `paths` are replaced by the model's name; the log has all."""
    log.error("cannot load the model %s: %s", name, error)
    reason = redact_paths(replace_paths(str(error), paths))
    if isinstance(error, ModelNotFound):  # its message lists the server's models
        reason = "its files were not found"
    return _server_error(error, f"the model {name} cannot be loaded: {reason}", "model_unusable")


def _server_error(error: SporeError, message: str, code: str | None) -> ApiError:
    """Return the response to an error that the request did not cause; `code` unless the error's class has its own."""
    retry = {"retry-after": str(RETRY_SECONDS)}
    if isinstance(error, MemoryShortage):
        return ApiError(503, message, "server_error", "memory_shortage", retry)
    if isinstance(error, BackendError):
        return ApiError(503, message, "server_error", "engine_failed", retry)
    return ApiError(500, message, "server_error", code)


def overflow_message(error: ContextOverflow, *, accepts_roll: bool = False) -> str:
    """Return what is too long and what a client can do about it. `accepts_roll`: the request has the field `roll`."""
    if not error.fact:
        return str(error)
    message = f"{error.fact}: shorten it"
    if accepts_roll and error.rolls:
        message += ', or send "roll": true, with which the window rolls on'
    if error.larger:
        message += f"; the server's operator can raise max_context, up to {error.larger} for this model"
    return message


def overflow_fields(error: ContextOverflow) -> dict[str, int]:
    """Return the tokens of a prompt that is too long and the size of the context, under llama-server's names;
    nothing where the text was refused before it was tokenized."""
    return {"n_prompt_tokens": error.tokens, "n_ctx": error.context} if error.tokens else {}


def parameter_at_fault(error: ApiError, parameters: Collection[str]) -> str | None:
    """Return which of a request's parameters an error is about; None if that is not known.

    Messages begin with the value at fault, as in `max_tokens is 0: ...` or `messages[0].role is 'x': ...`.
    """
    if error.code == "context_length_exceeded":
        return next((name for name in TEXT_PARAMETERS if name in parameters), None)
    match = _PARAMETER.match(error.message)
    return match[1] + match[2] if match and match[1] in parameters else None


ErrorFormat = Callable[[ApiError], dict[str, Any]]


def openai_error_body(error: ApiError) -> dict[str, Any]:
    """Return {"error": {"message", "type", "param", "code"}}, with extra fields in the error."""
    return {
        "error": {
            "message": error.message,
            "type": error.error_type,
            "param": error.param,
            "code": error.code,
            **error.extra_fields,
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


def anthropic_error_body(error: ApiError) -> dict[str, Any]:
    """Return {"type": "error", "error": {"type", "message"}}, with extra fields in the error."""
    error_type = _ANTHROPIC.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": error_type, "message": error.message, **error.extra_fields}}


def ollama_error_body(error: ApiError) -> dict[str, Any]:
    """Return {"error": "..."}, with extra fields beside it."""
    return {"error": error.message, **error.extra_fields}


def session_error_body(error: ApiError) -> dict[str, Any]:
    """Return {"status", "code", "message"}, with extra fields beside them."""
    return {"status": error.status, "code": error.session_code, "message": error.message, **error.extra_fields}


def error_format_for(path: str) -> ErrorFormat:
    """Return the error format of a path, for errors that occur before a route is found."""
    if path.startswith("/api/") and not path.startswith("/api/ui/"):
        return ollama_error_body
    if path.startswith("/v1/messages"):
        return anthropic_error_body
    return session_error_body if path in ("/infer", "/cancel", "/fork", "/drop") else openai_error_body
