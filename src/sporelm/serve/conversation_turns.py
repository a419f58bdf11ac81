"""Turn the tree of a stored conversation into the messages that a model is shown."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def branch(conversation: Mapping[str, Any], leaf: str | None) -> list[Json]:
    """Return the stored messages from the first one to `leaf`, oldest first; empty where `leaf` is unknown."""
    known = {message["id"]: message for message in conversation["messages"]}
    found: list[Json] = []
    while leaf is not None and (message := known.get(leaf)) is not None:
        found.append(message)
        leaf = message["parent"]
    return found[::-1]


def within_context(messages: Sequence[Json]) -> list[Json]:
    """Return the messages of a branch from its `context_start` on, which the newest message that has one names."""
    start = next((message["context_start"] for message in reversed(messages) if message.get("context_start")), None)
    at = next((index for index, message in enumerate(messages) if message["id"] == start), 0)
    return list(messages[at:])


def turns(conversation: Mapping[str, Any], leaf: str | None) -> list[Json]:
    """Return the chat up to `leaf` as messages {"role", "content"} for a chat template, the system prompt first.

    An answer that failed before its first word is left out together with its question, since turns must alternate.
    Questions that follow each other become one. Reasoning is left out: templates do not show that of earlier turns.
    """
    shown = within_context(branch(conversation, leaf))
    found: list[Json] = []
    if conversation["system"]:
        found.append({"role": "system", "content": conversation["system"]})
    for index, message in enumerate(shown):
        following = shown[index + 1] if index + 1 < len(shown) else None
        unanswered = message["role"] == "user" and following is not None and not following["content"]
        if not message["content"] or unanswered:
            continue
        if found and found[-1]["role"] == message["role"]:
            found[-1]["content"] += f"\n\n{message['content']}"
        else:
            found.append({"role": message["role"], "content": message["content"]})
    return found


def sampling_settings(settings: Mapping[str, Any]) -> Json:
    """Return the stored settings as fields of a request: empty ones are left to the server, `stop` is a list."""
    given = {name: value for name, value in settings.items() if value is not None and value != ""}
    if "stop" in given:
        given["stop"] = [given["stop"]]
    return given
