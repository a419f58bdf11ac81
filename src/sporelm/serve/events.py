"""Server-sent events, and how errors are told in the middle of them."""

from sporelm.serve.endpoint import encoded
from sporelm.serve.failures import Refusal, anthropic_shape, openai_shape, session_shape


def sse(data: bytes, event: bytes | None = None) -> bytes:
    """One event."""
    head = b"event: " + event + b"\n" if event is not None else b""
    return head + b"data: " + data + b"\n\n"


def openai_error(refusal: Refusal) -> bytes:
    """An error as OpenAI's streams have it; nothing follows."""
    return sse(encoded(openai_shape(refusal)))


def anthropic_error(refusal: Refusal) -> bytes:
    """An error as Anthropic's streams have it."""
    return sse(encoded(anthropic_shape(refusal)), b"error")


def session_error(refusal: Refusal) -> bytes:
    """An error in a session's stream of events."""
    return sse(encoded(session_shape(refusal)), b"error")
