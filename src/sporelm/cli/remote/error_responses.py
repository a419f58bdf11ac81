"""One-line errors for the error responses of a server."""

import json
from collections.abc import Mapping
from typing import Any

from sporelm.cli.remote.api_key_option import rejected_key_hint
from sporelm.cli.remote.server_address import ServerAddress
from sporelm.errors import RemoteError

MAX_MESSAGE_CHARS = 400  # shown of a server's message
MAX_ERROR_BYTES = 64 << 10  # read of an error response


def error_for_response(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    address: ServerAddress,
    *,
    key: str | None,
    is_model_named: bool,
) -> RemoteError:
    """Return the error for a response other than 200.

    key              the key that was sent; it is not shown
    is_model_named   whether the user named the model
    """
    message = read_message(body)
    detail = f" ({status})" + (f": {message}" if message else "")
    if status in (401, 403):
        problem = f"rejects the API key{detail}" if key else f"requires an API key{detail}"
        remedy = "give another one" if key else "give one"
        hint = rejected_key_hint(key or "")
        return RemoteError(f"{address.origin} {problem}; {remedy} with --api-key or SPORE_API_KEY{hint}")
    if status in (404, 405) and not message:
        return RemoteError(f"{address} is not an OpenAI-compatible server{detail}: check the address")
    if status == 404:
        remedy = "; leave MODEL out to use its first model" if is_model_named else ""
        return RemoteError(f"{address} does not have what was requested{detail}{remedy}")
    if status == 429:
        return RemoteError(f"{address.origin} is overloaded{detail}; {retry_hint(headers)}")
    if 300 <= status < 400:
        location = clip(headers.get("location") or "", 200)
        remedy = f"if that is right, give --url {location!r}" if location else "check the address"
        return RemoteError(f"{address.origin} redirects to another address{detail}: {remedy}")
    if status >= 500:
        return RemoteError(f"{address.origin} failed{detail}" + (f"; {retry_hint(headers)}" if status == 503 else ""))
    return RemoteError(f"{address.origin} rejects the request{detail}")


def retry_hint(headers: Mapping[str, str]) -> str:
    """Return when to retry, according to Retry-After: seconds or a date."""
    retry_after = clip(headers.get("retry-after") or "", 40)
    if not retry_after:
        return "try again later"
    return f"try again in {retry_after} s" if retry_after.isdecimal() else f"try again after {retry_after}"


def read_message(body: bytes) -> str:
    """Return the message in the body of an error: in the form of OpenAI, Ollama or FastAPI, or a short text."""
    text = body.decode("utf-8", "replace")
    try:
        return extract_message(json.loads(text))
    except (ValueError, RecursionError):
        return "" if "<" in text else clip(text)  # an HTML page is of no use here


def extract_message(error: Any) -> str:
    """Return the message of a decoded error, or the error itself as JSON if it has none."""
    for name in ("error", "message", "detail"):
        if isinstance(error, dict) and error.get(name):
            error = error[name]
    if isinstance(error, str):
        return clip(error)
    return clip(json.dumps(error)) if error else ""


def clip(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    """Return a text on one line of bounded length."""
    line = " ".join(text[: 4 * max_chars].split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}..."
