"""Server-sent events, and the error events of each API's streams."""

from sporelm.serve.http.api_errors import ApiError, anthropic_error_body, openai_error_body, session_error_body
from sporelm.serve.http.json_body import encode_json


def encode_event(data: bytes, event: bytes | None = None) -> bytes:
    """Return a server-sent event as bytes."""
    head = b"event: " + event + b"\n" if event is not None else b""
    return head + b"data: " + data + b"\n\n"


def openai_error_event(error: ApiError) -> bytes:
    """Return an error as OpenAI's streams send it, as their last event."""
    return encode_event(encode_json(openai_error_body(error)))


def anthropic_error_event(error: ApiError) -> bytes:
    """Return an error as Anthropic's streams send it."""
    return encode_event(encode_json(anthropic_error_body(error)), b"error")


def session_error_event(error: ApiError) -> bytes:
    """Return an error in a session's stream of events."""
    return encode_event(encode_json(session_error_body(error)), b"error")
