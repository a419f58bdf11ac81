"""Conversations as files of JSON: {"messages": [{"role", "content"}]}."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sporelm.errors import RequestError

LONGEST = 64 << 20  # bytes
ROLES = ("system", "developer", "user", "assistant")


def write(path: Path, messages: Sequence[dict[str, str]]) -> int:
    """Write messages; the file's bytes. It is there whole or not at all, and only its owner may read it.

    Raises RequestError if it cannot be written, or if there is one already that is no conversation.
    """
    if path.exists():
        read(path)
    from sporelm.weights.part_files import PartFiles  # not for every turn

    data = json.dumps({"messages": messages}, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n"
    try:
        with PartFiles() as unfinished:
            part = unfinished.path_for(path)
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            part.replace(path)
    except (OSError, ValueError) as reason:
        raise RequestError(f"{str(path)!r} cannot be written: {getattr(reason, 'strerror', reason)}") from None
    return len(data)


def read(path: Path) -> list[dict[str, str]]:
    """The messages of a file, which may also be a bare list of them. Raises RequestError."""
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{str(path)!r} is no file")
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
    except (OSError, ValueError) as reason:
        raise RequestError(f"{str(path)!r} cannot be read: {getattr(reason, 'strerror', reason)}") from None
    if len(data) > LONGEST:
        raise RequestError(f"{str(path)!r} has more than {LONGEST >> 20} MiB: that is no conversation")
    try:
        return messages_of(json.loads(data))
    except (ValueError, RecursionError):
        raise RequestError(
            f"{str(path)!r} is no conversation with a server: it must be JSON with messages of role and content"
        ) from None


def messages_of(found: Any) -> list[dict[str, str]]:
    """Messages out of what was read. Raises ValueError."""
    listed = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(listed, list):
        raise ValueError("no messages")
    for each in listed:
        if not isinstance(each, dict) or each.get("role") not in ROLES or not isinstance(each.get("content"), str):
            raise ValueError("no message")
    return [{"role": each["role"], "content": each["content"]} for each in listed]
