"""The branches of a stored conversation, whose messages form a tree, and the prompt of a branch."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def branch_messages(conversation: Mapping[str, Any], leaf: str | None) -> list[Json]:
    """Return the stored messages from the first one to `leaf`, oldest first; empty where `leaf` is unknown."""
    by_id = {message["id"]: message for message in conversation["messages"]}
    messages: list[Json] = []
    while leaf is not None and (message := by_id.get(leaf)) is not None:
        messages.append(message)
        leaf = message["parent"]
    return messages[::-1]


def context_messages(messages: Sequence[Json]) -> list[Json]:
    """Return the messages of a branch from its `context_start` on, which the newest message that has one names."""
    start = next((message["context_start"] for message in reversed(messages) if message.get("context_start")), None)
    at = next((index for index, message in enumerate(messages) if message["id"] == start), 0)
    return list(messages[at:])


def prompt_messages(conversation: Mapping[str, Any], leaf: str | None) -> list[Json]:
    """Return the chat up to `leaf` as messages {"role", "content"} for a chat template, the system prompt first.

    An answer that failed before its first token is left out together with its question, since turns must alternate.
    Consecutive questions become one. Reasoning is left out: templates do not show that of earlier turns.
    """
    messages = context_messages(branch_messages(conversation, leaf))
    prompt: list[Json] = []
    if conversation["system"]:
        prompt.append({"role": "system", "content": conversation["system"]})
    for index, message in enumerate(messages):
        following = messages[index + 1] if index + 1 < len(messages) else None
        is_unanswered = message["role"] == "user" and following is not None and not following["content"]
        if not message["content"] or is_unanswered:
            continue
        if prompt and prompt[-1]["role"] == message["role"]:
            prompt[-1]["content"] += f"\n\n{message['content']}"
        else:
            prompt.append({"role": message["role"], "content": message["content"]})
    return prompt
