"""Finds server-sent events in the bytes of an answer without reading the JSON of each: one search an event says whether
it brings text, and only the last ones are parsed, for the usage."""

import re
from collections import deque
from typing import Any

import msgspec

# A field with at least one character in it. Quotes inside of texts are escaped, so no text can look like one.
search_text = re.compile(rb'"(?:content|text|reasoning_content|reasoning)"\s*:\s*"(?!")').search
search_error = re.compile(
    rb'^error|"error"\s*:(?!\s*null)'
).search  # some servers say with each event that there is none
MAX_EVENT_BYTES = 1 << 20  # bytes of an event
NUM_LAST_EVENTS = 4  # events at the end that are looked into


class EventStream:
    """The events of one answer; `times` are when those with text arrived."""

    __slots__ = ("_last", "_rest", "done", "error", "num_events", "times")

    def __init__(self) -> None:
        self.times: list[float] = []
        self.num_events = 0
        self.done = False  # the stream said that it was at its end
        self.error: bytes | None = None  # an event that tells of an error
        self._rest = b""
        self._last: deque[bytes] = deque(maxlen=NUM_LAST_EVENTS)

    def take(self, data: bytes, now: float) -> None:
        """Bytes that arrived at `now`. Raises ValueError for an event without an end."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")  # one cut in two is whole when its second half has come
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of the answer is longer than {MAX_EVENT_BYTES} bytes")
        for event in events:
            if search_text(event):
                self.times.append(now)
            elif event.endswith(b"[DONE]"):
                self.done = True
                continue
            elif search_error(event):
                self.error = event
            self.num_events += 1
            self._last.append(event)

    def ending(self) -> list[dict[str, Any]]:
        """Return the last events as objects, the last one first. Events that are not objects are left out."""
        found = []
        for event in reversed(self._last):
            lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
            try:
                value = msgspec.json.decode(b"\n".join(lines))
            except msgspec.DecodeError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found


def find_usage(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the server's usage counts from the last event that has them, or an empty dict."""
    for event in events:
        if isinstance(event.get("usage"), dict):
            return event["usage"]
    return {}


def is_finished(events: list[dict[str, Any]]) -> bool:
    """Whether one of the events gives a reason why the answer ended."""
    choices = [choice for event in events for choice in event.get("choices") or () if isinstance(choice, dict)]
    return any(choice.get("finish_reason") for choice in choices)


def error_message(data: bytes) -> str:
    """Return the message of an error body in the forms that servers use, or the beginning of the body."""
    text = data.removeprefix(b"data:").removeprefix(b"error:").strip()
    try:
        found: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return " ".join(text.decode(errors="replace").split())[:200]
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return " ".join(str(found).split())[:300]
