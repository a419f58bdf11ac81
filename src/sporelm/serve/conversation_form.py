"""What a stored conversation may hold: every field, its type and its bounds, checked before anything is written.

A conversation is {"id", "title", "created", "updated", "version", "kind", "model", "system", "settings", "messages",
"current"}; times are milliseconds since 1970. Its messages form a tree: each names its `parent`, a message before it in
the list, or None. `current` is the last message of the branch that was shown. Ids are 32 hexadecimal digits.
The `error` of an answer is a table with a `code` and the code's parameters; older files have a sentence.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sporelm.errors import RequestError, shown

Json = dict[str, Any]

FORMAT = "sporelm-conversations"
FORMAT_VERSION = 1
ID = re.compile(r"[0-9a-f]{32}")
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
KINDS = ("chat", "completion")
ROLES = ("user", "assistant")
LATEST = 1 << 53  # the largest whole number that every reader of JSON takes for itself
MOST_ENTRIES = 32  # of settings, of one message's stats
MOST_VERSIONS = 4  # that a change may have been made from
GROWING = ("content", "reasoning")  # of an answer that comes


class BadConversation(RequestError):
    """A conversation, or a change to one, holds a value that is not allowed."""


class TooMuch(RequestError):
    """A conversation, or all of one owner's, would outgrow a limit."""


@dataclass(frozen=True)
class Limits:
    """How much is kept: characters of texts, bytes of files, and how many there may be."""

    title: int = 200
    system: int = 200_000
    content: int = 1_000_000
    messages: int = 4_000
    conversation_bytes: int = 4 << 20
    conversations: int = 5_000
    owner_bytes: int = 512 << 20
    import_bytes: int = 64 << 20


def checked_conversation(value: object, limits: Limits) -> Json:
    """A new conversation's fields, defaults filled in; an `id` and a `version` are left to the store.

    Raises BadConversation, TooMuch.
    """
    given = _object(value, "a conversation", {*FIELDS, "id", "created", "updated", "version", "messages", "current"})
    result: Json = {"title": "", "kind": "chat", "model": "", "system": "", "settings": {}}
    for name in FIELDS:
        if name in given:
            result[name] = FIELDS[name](given[name], name, limits)
    for name in ("created", "updated"):
        if name in given:
            result[name] = time_of(given[name], name, limits)
    messages = given.get("messages", [])
    if not isinstance(messages, list):
        raise BadConversation(f"messages is {shown(messages)}: it must be a list")
    result["messages"] = checked_tree([checked_message(message, limits) for message in messages], limits)
    result["current"] = checked_current(given.get("current"), result["messages"])
    return result


def checked_message(value: object, limits: Limits) -> Json:
    """One message with `id`, `parent`, `role` and `content`, and what else it may have. Raises BadConversation."""
    given = _object(value, "a message", set(MESSAGE))
    for name in ("id", "role", "content"):
        if name not in given:
            raise BadConversation(f"a message has no {name}: it needs id, role and content")
    return {"parent": None} | {name: MESSAGE[name](part, name, limits) for name, part in given.items()}


def checked_tree(messages: list[Json], limits: Limits) -> list[Json]:
    """The messages, if each has an id of its own and a parent before it. Raises BadConversation, TooMuch."""
    if len(messages) > limits.messages:
        raise TooMuch(
            f"the conversation has {len(messages)} messages: at most {limits.messages} are kept; start another"
        )
    seen: set[str] = set()
    for message in messages:
        if message["id"] in seen:
            raise BadConversation(f"two messages have the id {message['id']}: each needs its own")
        if message["parent"] is not None and message["parent"] not in seen:
            raise BadConversation(f"parent {shown(message['parent'])} of message {message['id']} is not before it")
        seen.add(message["id"])
    return messages


def checked_current(value: object, messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The id of the message that is shown last; the newest where none is named. Raises BadConversation."""
    if value is None:
        return messages[-1]["id"] if messages else None
    if not any(message["id"] == value for message in messages):
        raise BadConversation(f"current is {shown(value)}: there is no such message")
    return str(value)


def changed(conversation: Json, changes: object, limits: Limits, protected: str | None = None) -> Json:
    """A conversation after a change {"title", "system", ..., "current", "messages", "remove"}.

    A message whose id is known takes the place of the old one, others are added; one that says what is `kept` of the
    old one goes on with that. `remove` names messages that go with all that follows them. `protected` is the id of an
    answer that the server is writing: what the change says of its content is ignored. Raises BadConversation, TooMuch;
    the conversation given is not touched.
    """
    given = _object(changes, "a change", {*FIELDS, "version", "messages", "remove", "current"})
    result = dict(conversation)
    for name in FIELDS:
        if name in given:
            result[name] = FIELDS[name](given[name], name, limits)
    added, removed = given.get("messages", []), given.get("remove", [])
    if not isinstance(added, list) or not isinstance(removed, list):
        raise BadConversation("messages and remove must be lists")
    messages = {message["id"]: message for message in result["messages"]}
    for value in added:
        if protected is not None and isinstance(value, dict) and value.get("id") == protected:
            continue
        message = checked_message(_joined(value, messages), limits)
        messages[message["id"]] = message
    gone = {shown_id(value, "remove", limits) for value in removed}
    kept: list[Json] = []
    for message in messages.values():
        if message["id"] in gone or message["parent"] in gone:
            gone.add(message["id"])
        else:
            kept.append(message)
    result["messages"] = checked_tree(kept, limits)
    current = given.get("current", None if result["current"] in gone else result["current"])
    result["current"] = checked_current(current, kept)
    return result


def versions_of(change: object) -> list[int]:
    """The versions that a change may have been made from. Raises BadConversation."""
    given = change.get("version") if isinstance(change, dict) else None
    versions: list[Any] = given if isinstance(given, list) else [given]
    if not 1 <= len(versions) <= MOST_VERSIONS or any(type(version) is not int for version in versions):
        raise BadConversation(f"version is {shown(given)}: it must be the number that the conversation had")
    return versions


def _joined(value: object, messages: Mapping[object, Json]) -> object:
    """A changed message, with what it says is `kept` of the old one: {"content": characters, "reasoning": characters},
    which what it has of the two follows. Raises BadConversation."""
    if not isinstance(value, dict) or "kept" not in value:
        return value
    kept = _object(value["kept"], "kept", set(GROWING))
    identity = value.get("id")
    before = messages.get(identity) if isinstance(identity, str) else None
    joined = {name: given for name, given in value.items() if name != "kept"}
    for name, count in kept.items():
        there = (before or {}).get(name, "")
        if type(count) is not int or not 0 <= count <= len(there):
            raise BadConversation(f"kept {name} is {shown(count)}: the message has {len(there)} characters of it")
        if count and isinstance(rest := value.get(name, ""), str):
            joined[name] = there[:count] + rest
    return joined


def bundle_of(value: object) -> list[object]:
    """The conversations of an imported file: {"format", "format_version", "conversations"}. Raises BadConversation."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise BadConversation(f'the file is no export of conversations: its "format" must be "{FORMAT}"')
    if value.get("format_version") != FORMAT_VERSION:
        found = shown(value.get("format_version"))
        raise BadConversation(f"the file is of format_version {found}: this server reads {FORMAT_VERSION}")
    conversations = value.get("conversations")
    if not isinstance(conversations, list):
        raise BadConversation(f"conversations is {shown(conversations)}: it must be a list")
    return conversations


def _object(value: object, what: str, names: set[str]) -> Json:
    if not isinstance(value, dict):
        raise BadConversation(f"{what} is {shown(value)}: it must be an object")
    unknown = sorted(set(value) - names)
    if unknown:
        raise BadConversation(f"{what} has the unknown field {shown(unknown[0])}: known are {', '.join(sorted(names))}")
    return value


def text_of(most: Callable[[Limits], int]) -> Callable[[object, str, Limits], str]:
    """The check of a text of at most so many characters, none of them half of a pair."""

    def check(value: object, name: str, limits: Limits) -> str:
        if not isinstance(value, str):
            raise BadConversation(f"{name} is {shown(value)}: it must be a text")
        if len(value) > most(limits):
            raise TooMuch(f"{name} has {len(value)} characters: at most {most(limits)} are kept")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadConversation(
                f"{name} holds half of a surrogate pair at {error.start}: it is no Unicode text"
            ) from None
        return value

    return check


def shown_id(value: object, name: str, limits: Limits) -> str:
    """The check of an id."""
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise BadConversation(f"{name} is {shown(value)}: it must be 32 hexadecimal digits")
    return value


def _parent(value: object, name: str, limits: Limits) -> str | None:
    return None if value is None else shown_id(value, name, limits)


def _one_of(allowed: Sequence[str]) -> Callable[[object, str, Limits], str]:
    def check(value: object, name: str, limits: Limits) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise BadConversation(f"{name} is {shown(value)}: it must be one of {', '.join(allowed)}")
        return value

    return check


def time_of(value: object, name: str, limits: Limits) -> int:
    """The check of a time: whole milliseconds since 1970."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LATEST:
        raise BadConversation(f"{name} is {shown(value)}: it must be milliseconds since 1970")
    return value


def _entries(value: object, name: str, limits: Limits) -> Json:
    """A small table: names in lower case, and numbers, truth values or short texts."""
    if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
        raise BadConversation(f"{name} is {shown(value)}: it must be an object of at most {MOST_ENTRIES} entries")
    for key, entry in value.items():
        if not NAME.fullmatch(key):
            raise BadConversation(f"{name} has the entry {shown(key)}: names are lower-case letters, digits and _")
        number = isinstance(entry, int | float) and -LATEST < entry < LATEST  # which no NaN is
        if isinstance(entry, str):
            text_of(lambda _: 2_000)(entry, f"{name}.{key}", limits)
        elif entry is not None and not number:
            raise BadConversation(f"{name}.{key} is {shown(entry)}: it must be a number or a text")
    return value


def _error(value: object, name: str, limits: Limits) -> str | Json:
    """The check of an answer's error: {"code", parameters}, or a sentence, as older pages stored it."""
    if isinstance(value, str):
        return text_of(lambda _: 2_000)(value, name, limits)
    found = _entries(value, name, limits)
    if not NAME.fullmatch(str(found.get("code"))):
        raise BadConversation(f"{name}.code is {shown(found.get('code'))}: it must be lower-case letters, digits and _")
    return found


FIELDS: dict[str, Callable[[object, str, Limits], Any]] = {
    "title": text_of(lambda limits: limits.title),
    "kind": _one_of(KINDS),
    "model": text_of(lambda _: 500),
    "system": text_of(lambda limits: limits.system),
    "settings": _entries,
}
MESSAGE: dict[str, Callable[[object, str, Limits], Any]] = {
    "id": shown_id,
    "parent": _parent,
    "role": _one_of(ROLES),
    "content": text_of(lambda limits: limits.content),
    "reasoning": text_of(lambda limits: limits.content),
    "model": text_of(lambda _: 500),
    "finish": text_of(lambda _: 40),
    "error": _error,
    "context_start": shown_id,
    "created": time_of,
    "stats": _entries,
}
