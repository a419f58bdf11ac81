"""The schema of stored conversations: every field with its type and limits, checked before anything is written.

A conversation is {"id", "title", "created", "updated", "version", "kind", "model", "system", "settings", "messages",
"current"}; times are milliseconds since 1970. Its messages form a tree: each names its `parent`, an earlier message in
the list, or None. `current` is the last message of the branch that was shown. Ids are 32 hexadecimal digits.
A question may have `images`, {"id", "name", "width", "height"}; `stored_images` keeps the pictures themselves.
The `error` of an answer is an object with a `code` and the code's parameters; older files have a sentence.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sporelm.errors import RequestError, safe_repr

Json = dict[str, Any]

FORMAT = "sporelm-conversations"
FORMAT_VERSION = 1
ID = re.compile(r"[0-9a-f]{32}")
IMAGE_ID = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
KINDS = ("chat", "completion")
ROLES = ("user", "assistant")
MAX_TIME = 1 << 53  # the largest integer that every JSON reader represents exactly
MAX_ENTRIES = 32  # of settings, or of one message's stats
MAX_IMAGES = 32  # of one message
MAX_IMAGE_SIDE = 1 << 20  # pixels
MAX_BASE_VERSIONS = 4  # that one change may name
APPENDABLE = ("content", "reasoning")  # a change may send only the end of these fields


class InvalidConversation(RequestError):
    """A conversation, or a change to one, has an invalid value."""

    def __init__(self, message: str, param: str | None = None) -> None:
        """`param` names the field that is invalid."""
        super().__init__(message)
        self.param = param


class TooLarge(RequestError):
    """A conversation, or all of one owner's, would exceed a limit."""


@dataclass(frozen=True)
class ConversationLimits:
    """Limits of the store: characters of texts, bytes of files, and numbers of entries."""

    title: int = 200
    system: int = 200_000
    content: int = 1_000_000
    messages: int = 4_000
    conversation_bytes: int = 4 << 20
    conversations: int = 5_000
    owner_bytes: int = 512 << 20  # pictures included
    image_bytes: int = 16 << 20
    import_bytes: int = 64 << 20


Check = Callable[[object, str, ConversationLimits], Any]


def check_conversation(value: object, limits: ConversationLimits) -> Json:
    """Return a new conversation with defaults filled in. Its `id` and `version` are up to the store.

    Raises InvalidConversation, TooLarge.
    """
    known = {*FIELDS, "id", "created", "updated", "version", "messages", "current"}
    given = check_object(value, "a conversation", known)
    conversation: Json = {"title": "", "kind": "chat", "model": "", "system": "", "settings": {}}
    for name in FIELDS:
        if name in given:
            conversation[name] = FIELDS[name](given[name], name, limits)
    for name in ("created", "updated"):
        if name in given:
            conversation[name] = check_time(given[name], name, limits)
    messages = given.get("messages", [])
    if not isinstance(messages, list):
        raise InvalidConversation(f"messages is {safe_repr(messages)}: it must be a list", "messages")
    conversation["messages"] = check_tree([check_message(message, limits) for message in messages], limits)
    conversation["current"] = check_current(given.get("current"), conversation["messages"])
    return conversation


def check_message(value: object, limits: ConversationLimits) -> Json:
    """Return a message with `id`, `parent`, `role`, `content` and optional fields. Raises InvalidConversation."""
    given = check_object(value, "a message", set(MESSAGE_FIELDS))
    for name in ("id", "role", "content"):
        if name not in given:
            raise InvalidConversation(f"a message has no {name}: it needs id, role and content", "messages")
    message = {"parent": None} | {name: MESSAGE_FIELDS[name](field, name, limits) for name, field in given.items()}
    if message.get("images") and message["role"] != "user":
        raise InvalidConversation("a message of the assistant has images: only those of the user have any", "messages")
    return message


def check_tree(messages: list[Json], limits: ConversationLimits) -> list[Json]:
    """Return the messages if each has a unique id and an earlier parent. Raises InvalidConversation, TooLarge."""
    if len(messages) > limits.messages:
        raise TooLarge(
            f"the conversation has {len(messages)} messages: at most {limits.messages} are stored; start another"
        )
    seen: set[str] = set()
    for message in messages:
        if message["id"] in seen:
            raise InvalidConversation(f"two messages have the id {message['id']}: each needs its own", "messages")
        if message["parent"] is not None and message["parent"] not in seen:
            raise InvalidConversation(
                f"parent {safe_repr(message['parent'])} of message {message['id']} is not before it", "messages"
            )
        seen.add(message["id"])
    return messages


def check_current(value: object, messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the id of the message that is shown last, by default the newest. Raises InvalidConversation."""
    if value is None:
        return messages[-1]["id"] if messages else None
    if not any(message["id"] == value for message in messages):
        raise InvalidConversation(f"current is {safe_repr(value)}: there is no such message", "current")
    return str(value)


def apply_change(
    conversation: Json, change: object, limits: ConversationLimits, protected_id: str | None = None
) -> Json:
    """Return a conversation after a change {"title", "system", ..., "current", "messages", "remove"}.

    A message with a known id replaces the stored one, others are added; one with `kept` continues the stored texts.
    `remove` names messages that are removed with all their descendants. `protected_id` is the id of an answer that the
    server is writing, whose content in the change is ignored. Raises InvalidConversation, TooLarge; the conversation
    passed in is not modified.
    """
    given = check_object(change, "a change", {*FIELDS, "version", "messages", "remove", "current"})
    changed = dict(conversation)
    for name in FIELDS:
        if name in given:
            changed[name] = FIELDS[name](given[name], name, limits)
    new_messages = given.get("messages", [])
    removals = given.get("remove", [])
    for name, values in (("messages", new_messages), ("remove", removals)):
        if not isinstance(values, list):
            raise InvalidConversation(f"{name} is {safe_repr(values)}: it must be a list", name)
    messages = {message["id"]: message for message in changed["messages"]}
    for value in new_messages:
        if protected_id is not None and isinstance(value, dict) and value.get("id") == protected_id:
            continue
        message = check_message(_with_kept_text(value, messages), limits)
        messages[message["id"]] = message
    removed_ids = {check_id(value, "remove", limits) for value in removals}
    remaining: list[Json] = []
    for message in messages.values():
        if message["id"] in removed_ids or message["parent"] in removed_ids:
            removed_ids.add(message["id"])
        else:
            remaining.append(message)
    changed["messages"] = check_tree(remaining, limits)
    current = given.get("current", None if changed["current"] in removed_ids else changed["current"])
    changed["current"] = check_current(current, remaining)
    return changed


def base_versions(change: object) -> list[int]:
    """Return the versions that a change may have been made from. Raises InvalidConversation."""
    given = change.get("version") if isinstance(change, dict) else None
    versions: list[Any] = given if isinstance(given, list) else [given]
    if not 1 <= len(versions) <= MAX_BASE_VERSIONS or any(type(version) is not int for version in versions):
        raise InvalidConversation(
            f"version is {safe_repr(given)}: it must be the number of the version read", "version"
        )
    return versions


def _with_kept_text(value: object, messages: Mapping[object, Json]) -> object:
    """Return a changed message with the stored text that it keeps: `kept` is {"content": characters, "reasoning":
    characters}, and the message's own texts follow those. Raises InvalidConversation."""
    if not isinstance(value, dict) or "kept" not in value:
        return value
    kept = check_object(value["kept"], "kept", set(APPENDABLE))
    message_id = value.get("id")
    stored = messages.get(message_id) if isinstance(message_id, str) else None
    joined = {name: field for name, field in value.items() if name != "kept"}
    for name, count in kept.items():
        stored_text = (stored or {}).get(name, "")
        if type(count) is not int or not 0 <= count <= len(stored_text):
            raise InvalidConversation(
                f"kept {name} is {safe_repr(count)}: the message has {len(stored_text)} characters of it", "messages"
            )
        if count and isinstance(rest := value.get(name, ""), str):
            joined[name] = stored_text[:count] + rest
    return joined


def images_of_export(value: object, limits: ConversationLimits) -> list[bytes]:
    """Return the pictures of an exported file, whose `images` are base64 by their ids. Raises InvalidConversation,
    TooLarge."""
    images = value.get("images", {}) if isinstance(value, dict) else {}
    if not isinstance(images, dict):
        raise InvalidConversation(f"images is {safe_repr(images)}: it must be an object", "images")
    decoded = []
    for name, text in images.items():
        try:
            data = b64decode(text, validate=True)
        except (ValueError, TypeError):
            raise InvalidConversation(f"image {safe_repr(name)} is not valid base64", "images") from None
        if sha256(data).hexdigest() != name:
            raise InvalidConversation(f"image {safe_repr(name)} has other bytes than its id says", "images")
        if len(data) > limits.image_bytes:
            raise TooLarge(f"an image has {len(data)} bytes: at most {limits.image_bytes} are stored")
        decoded.append(data)
    return decoded


def conversations_of_export(value: object) -> list[object]:
    """Return the conversations of an exported file: {"format", "format_version", "conversations", "images"}.

    Raises InvalidConversation.
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InvalidConversation(
            f'the file is not an export of conversations: its "format" must be "{FORMAT}"', "format"
        )
    if value.get("format_version") != FORMAT_VERSION:
        version = safe_repr(value.get("format_version"))
        raise InvalidConversation(f"format_version is {version}: this server reads {FORMAT_VERSION}", "format_version")
    conversations = value.get("conversations")
    if not isinstance(conversations, list):
        raise InvalidConversation(f"conversations is {safe_repr(conversations)}: it must be a list", "conversations")
    return conversations


def check_object(value: object, title: str, known: set[str]) -> Json:
    """Return an object without unknown fields. Raises InvalidConversation."""
    if not isinstance(value, dict):
        raise InvalidConversation(f"{title} is {safe_repr(value)}: it must be an object")
    unknown = sorted(set(value) - known)
    if unknown:
        raise InvalidConversation(
            f"{title} has the unknown field {safe_repr(unknown[0])}: known are {', '.join(sorted(known))}", unknown[0]
        )
    return value


def string_check(max_characters: Callable[[ConversationLimits], int]) -> Check:
    """Return a check for strings of a maximum length that are valid Unicode."""

    def check(value: object, name: str, limits: ConversationLimits) -> str:
        if not isinstance(value, str):
            raise InvalidConversation(f"{name} is {safe_repr(value)}: it must be a string", name)
        if len(value) > max_characters(limits):
            raise TooLarge(f"{name} has {len(value)} characters: at most {max_characters(limits)} are stored")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidConversation(
                f"{name} is not valid Unicode: half of a surrogate pair at {error.start}", name
            ) from None
        return value

    return check


def check_id(value: object, name: str, limits: ConversationLimits) -> str:
    """Return an id. Raises InvalidConversation."""
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise InvalidConversation(f"{name} is {safe_repr(value)}: it must be 32 hexadecimal digits", name)
    return value


def _check_parent(value: object, name: str, limits: ConversationLimits) -> str | None:
    return None if value is None else check_id(value, name, limits)


def _choice_check(allowed: Sequence[str]) -> Check:
    def check(value: object, name: str, limits: ConversationLimits) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise InvalidConversation(f"{name} is {safe_repr(value)}: it must be one of {', '.join(allowed)}", name)
        return value

    return check


def check_time(value: object, name: str, limits: ConversationLimits) -> int:
    """Return a time in milliseconds since 1970. Raises InvalidConversation."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_TIME:
        raise InvalidConversation(f"{name} is {safe_repr(value)}: it must be milliseconds since 1970", name)
    return value


def _check_entries(value: object, name: str, limits: ConversationLimits) -> Json:
    """Return a small object: names in lower case; numbers, booleans, short strings or null. Raises InvalidConversation,
    TooLarge."""
    if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
        raise InvalidConversation(
            f"{name} is {safe_repr(value)}: it must be an object of at most {MAX_ENTRIES} entries", name
        )
    for key, entry in value.items():
        if not NAME.fullmatch(key):
            raise InvalidConversation(
                f"{name} has the entry {safe_repr(key)}: names are lower-case letters, digits and _", name
            )
        is_number = isinstance(entry, int | float) and -MAX_TIME < entry < MAX_TIME  # false for NaN
        if isinstance(entry, str):
            string_check(lambda _: 2_000)(entry, f"{name}.{key}", limits)
        elif entry is not None and not is_number:
            raise InvalidConversation(
                f"{name}.{key} is {safe_repr(entry)}: it must be a number or a string", f"{name}.{key}"
            )
    return value


def _check_images(value: object, name: str, limits: ConversationLimits) -> list[Json]:
    """Return the pictures of a message: an id, and optionally a name and the size in pixels. Raises
    InvalidConversation, TooLarge."""
    if not isinstance(value, list):
        raise InvalidConversation(f"{name} is {safe_repr(value)}: it must be a list", name)
    if len(value) > MAX_IMAGES:
        raise TooLarge(f"a message has {len(value)} images: at most {MAX_IMAGES} are stored")
    for image in value:
        given = check_object(image, "an image", {"id", "name", "width", "height"})
        if not isinstance(given.get("id"), str) or not IMAGE_ID.fullmatch(given["id"]):
            raise InvalidConversation(
                f"the id of an image is {safe_repr(given.get('id'))}: it must be 64 hexadecimal digits", name
            )
        if "name" in given:
            string_check(lambda limits: limits.title)(given["name"], "the name of an image", limits)
        for side in ("width", "height"):
            size = given.get(side, 1)
            if type(size) is not int or not 1 <= size <= MAX_IMAGE_SIDE:
                raise InvalidConversation(
                    f"the {side} of an image is {safe_repr(size)}: it must be from 1 to {MAX_IMAGE_SIDE}", name
                )
    return value


def _check_error(value: object, name: str, limits: ConversationLimits) -> str | Json:
    """Return an answer's error: {"code", parameters}, or a sentence, as in older files. Raises InvalidConversation."""
    if isinstance(value, str):
        return string_check(lambda _: 2_000)(value, name, limits)
    error = _check_entries(value, name, limits)
    code = error.get("code")
    if not NAME.fullmatch(str(code)):
        raise InvalidConversation(
            f"{name}.code is {safe_repr(code)}: it must be lower-case letters, digits and _", name
        )
    return error


FIELDS: dict[str, Check] = {
    "title": string_check(lambda limits: limits.title),
    "kind": _choice_check(KINDS),
    "model": string_check(lambda _: 500),
    "system": string_check(lambda limits: limits.system),
    "settings": _check_entries,
}
MESSAGE_FIELDS: dict[str, Check] = {
    "id": check_id,
    "parent": _check_parent,
    "role": _choice_check(ROLES),
    "content": string_check(lambda limits: limits.content),
    "reasoning": string_check(lambda limits: limits.content),
    "model": string_check(lambda _: 500),
    "finish": string_check(lambda _: 40),
    "error": _check_error,
    "context_start": check_id,
    "created": check_time,
    "stats": _check_entries,
    "images": _check_images,
}
