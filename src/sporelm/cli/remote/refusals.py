"""What a server says when it does not answer, as one line."""

import json
from collections.abc import Mapping
from typing import Any

from sporelm.cli.remote.address import Address
from sporelm.cli.remote.key import hint_of
from sporelm.errors import RemoteError

LONGEST_MESSAGE = 400  # characters that are shown
LONGEST_BODY = 64 << 10  # bytes of an error that are read


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, address: Address, *, key: str | None, named: bool
) -> RemoteError:
    """The error of an answer that is none; `key`: what was sent, which is not shown; `named`: was MODEL given."""
    said = message_of(body)
    what = f" ({status})" + (f": {said}" if said else "")
    if status in (401, 403):
        remedy = "give another one" if key else "give one"
        wrong = f"does not take the key{what}" if key else f"wants a key{what}"
        hint = hint_of(key or "")
        return RemoteError(f"{address.origin} {wrong}; {remedy} with --api-key or SPORE_API_KEY{hint}")
    if status in (404, 405) and not said:
        return RemoteError(f"{address} is no OpenAI-compatible server{what}: what is its address?")
    if status == 404:
        remedy = "; without MODEL its first model is taken" if named else ""
        return RemoteError(f"{address} has no such thing{what}{remedy}")
    if status == 429:
        return RemoteError(f"{address.origin} has too much to do{what}; {again(headers)}")
    if 300 <= status < 400:
        place = clipped(headers.get("location") or "nowhere", 200)
        return RemoteError(f"{address.origin} points elsewhere{what}: if that is right, give --url {place!r}")
    if status >= 500:
        return RemoteError(f"{address.origin} failed{what}" + (f"; {again(headers)}" if status == 503 else ""))
    return RemoteError(f"{address.origin} refuses the request{what}")


def again(headers: Mapping[str, str]) -> str:
    """When to come again: what Retry-After says, seconds or a date."""
    told = clipped(headers.get("retry-after") or "", 40)
    if not told:
        return "try again later"
    return f"try again in {told} s" if told.isdecimal() else f"try again after {told}"


def message_of(body: bytes) -> str:
    """The message in the body of an error: OpenAI's shape, Ollama's, FastAPI's, or a short text; else nothing."""
    text = body.decode("utf-8", "replace")
    try:
        return told(json.loads(text))
    except (ValueError, RecursionError):
        return "" if "<" in text else clipped(text)  # a page for browsers says nothing here


def told(found: Any) -> str:
    """The message of an error that was read; of one without a message itself."""
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    if isinstance(found, str):
        return clipped(found)
    return clipped(json.dumps(found)) if found else ""


def clipped(text: str, most: int = LONGEST_MESSAGE) -> str:
    """A text on one line of bounded length."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[:most]}..."
