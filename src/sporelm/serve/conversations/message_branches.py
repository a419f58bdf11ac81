"""The branches of a stored conversation, whose messages form a tree, and the prompt of a branch."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.serve.chat.image_parts import Content, Part, text_part
from sporelm.serve.conversations.stored_images import ImageRef

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
    """Return the chat up to `leaf` as messages {"role", "content"} for a chat template, the system prompt first. The
    content of a message with pictures is a list of parts, an `ImageRef` for each picture and then the text.

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
        content = _content(message)
        if not content or is_unanswered:
            continue
        if prompt and prompt[-1]["role"] == message["role"]:
            prompt[-1]["content"] = _joined(prompt[-1]["content"], content)
        else:
            prompt.append({"role": message["role"], "content": content})
    return prompt


def _content(message: Json) -> Content:
    """Return the text of a message, or its pictures and then its text."""
    text = message["content"]
    if not message.get("images"):
        return text
    pictures: list[Part] = [
        {"type": "image", "image": ImageRef(image["id"]), "path": image.get("name", "an image")}
        for image in message["images"]
    ]
    return [*pictures, text_part(text)] if text else pictures


def _joined(first: Content, second: Content) -> Content:
    """Return the contents of two questions in a row as one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    first_parts, second_parts = (
        [text_part(content)] if isinstance(content, str) else content for content in (first, second)
    )
    return [*first_parts, text_part("\n\n"), *second_parts]
