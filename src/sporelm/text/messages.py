"""The messages of a chat: what they must look like before a template sees them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError

MAX_NESTING = 32


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as plain data of our own: a template may hold no object of the caller's.

    Each is a mapping with a `role` (text) and a `content`: a text, or a list of parts {"type": "text", "text": ...}.
    A message with `tool_calls` may go without content. Other keys pass through if they are plain data.
    Raises RequestError with the index of the message at fault.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise RequestError(f"messages is a {type(messages).__name__}; it must be a list of {{role, content}}")
    if not messages:
        raise RequestError("messages is empty; give at least one message")
    return [_message(message, f"message {index}") for index, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is a {type(message).__name__}; it must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}: role is {role!r:.60}; it must be a text such as 'user'")
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        for index, part in enumerate(content):
            _check_part(part, f"{where}, part {index}")
    elif content is None:
        if not message.get("tool_calls"):
            raise RequestError(f"{where} has no content; give a text or a list of parts")
    elif not isinstance(content, str):
        raise RequestError(f"{where}: content is a {type(content).__name__}; it must be a text or a list of parts")
    plain: dict[str, Any] = plain_data(message, where)
    return plain


def _check_part(part: Any, where: str) -> None:
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} is a {type(part).__name__}; it must be an object with type and text")
    kind = part.get("type")
    if kind != "text":
        raise RequestError(f"{where} has type {kind!r:.60}; only 'text' is supported")
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{where}: text is a {type(part.get('text')).__name__}; it must be a text")


def plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of JSON-like data in exactly dict, list, str, int, float, bool and None.

    Raises RequestError for anything else, and for data nested deeper than MAX_NESTING.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth >= MAX_NESTING:
        raise RequestError(f"{where} nests deeper than {MAX_NESTING} levels")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RequestError(f"{where} has the key {key!r:.60}; keys must be texts")
        return {str.__str__(key): plain_data(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item, where, depth + 1) for item in value]
    raise RequestError(f"{where} holds a {type(value).__name__}; only texts, numbers, lists and objects are taken")


def joined_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with each list of parts made one text, for templates that know nothing of parts."""
    return [
        {**message, "content": "".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def size_of(value: Any) -> int:
    """Characters in plain data, each value counting at least one."""
    if isinstance(value, str):
        return len(value) + 1
    if isinstance(value, dict):
        return 1 + sum(len(key) + size_of(item) for key, item in value.items())
    if isinstance(value, list):
        return 1 + sum(map(size_of, value))
    return 1
