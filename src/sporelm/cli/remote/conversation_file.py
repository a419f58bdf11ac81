"""Conversations in JSON files: {"messages": [{"role", "content"}]}; the content of messages with pictures is a list of
OpenAI's parts."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sporelm.errors import RequestError

MAX_FILE_BYTES = 64 << 20
ROLES = ("system", "developer", "user", "assistant")


def write_conversation(path: Path, messages: Sequence[dict[str, Any]]) -> int:
    """Write messages atomically to a file that only its owner can read, and return its size in bytes.

    Raises RequestError if it cannot be written, or if the path exists and is not a conversation.
    """
    if path.exists():
        read_conversation(path)
    data = json.dumps({"messages": messages}, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n"
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(
            f"the conversation is too large to be saved (got {len(data)} bytes; allowed {MAX_FILE_BYTES}). Begin a new "
            "one with fewer pictures"
        )
    from sporelm.files.part_files import PartFiles  # imported only when needed

    try:
        with PartFiles() as unfinished:
            part = unfinished.path_for(path)
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            part.replace(path)
    except (OSError, ValueError) as reason:
        raise RequestError(f"{str(path)!r} cannot be written: {getattr(reason, 'strerror', reason)}") from None
    return len(data)


def read_conversation(path: Path) -> list[dict[str, Any]]:
    """Return the messages of a file, which may also be a plain list of messages. Raises RequestError."""
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{str(path)!r} is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as reason:
        raise RequestError(f"{str(path)!r} cannot be read: {getattr(reason, 'strerror', reason)}") from None
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(f"{str(path)!r} has more than {MAX_FILE_BYTES >> 20} MiB: it is not a conversation")
    try:
        return parse_messages(json.loads(data))
    except (ValueError, RecursionError):
        raise RequestError(
            f"{str(path)!r} is not a conversation with a server: it must be JSON with messages of role and content"
        ) from None


def parse_messages(value: Any) -> list[dict[str, Any]]:
    """Return the messages of a decoded file. Raises ValueError."""
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list):
        raise ValueError("messages is not a list")
    for each in messages:
        if not isinstance(each, dict) or each.get("role") not in ROLES or not is_content(each.get("content")):
            raise ValueError("a message has no role or content")
    return [{"role": each["role"], "content": each["content"]} for each in messages]


def is_content(content: Any) -> bool:
    """Return whether a decoded content is a text, or a list of texts and pictures with their data."""
    if isinstance(content, str):
        return True
    return isinstance(content, list) and all(isinstance(part, dict) and is_part(part) for part in content)


def is_part(part: dict[str, Any]) -> bool:
    """Return whether a decoded part is a text, or a picture with its data."""
    if part.get("type") == "text":
        return part.keys() == {"type", "text"} and isinstance(part["text"], str)
    address = part.get("image_url")
    url = address.get("url") if isinstance(address, dict) else None
    return part.get("type") == "image_url" and isinstance(url, str) and url.startswith("data:image/")
