"""Anthropic's messages, which are lists of content blocks, as messages for chat templates.

Text and images stay in the order of the blocks, also in the results of tools.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError, safe_repr
from sporelm.serve.chat.image_parts import Content, anthropic_image, check_image_role, join_text, text_part


def messages_from_blocks(system: str | list[dict[str, Any]] | None, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the messages, the system's first. A block with a tool's result becomes a message of the role `tool`.

    Raises RequestError for a block that is not supported.
    """
    chat: list[dict[str, Any]] = []
    if system:
        text = (
            system
            if isinstance(system, str)
            else "".join(_block_text(block, f"system[{index}]") for index, block in enumerate(system))
        )
        chat.append({"role": "system", "content": text})
    for index, message in enumerate(messages):
        role = message.get("role")
        content = message.get("content")
        path = f"messages[{index}]"
        if role not in ("user", "assistant", "system"):
            raise RequestError(f"{path}.role is {safe_repr(role)}: it must be user or assistant")
        if isinstance(content, str):
            chat.append({"role": role, "content": content})
        elif isinstance(content, list):
            chat += _assistant_messages(content, path) if role == "assistant" else _user_messages(role, content, path)
        else:
            raise RequestError(f"{path}.content is {safe_repr(content)}: it must be a string or a list of blocks")
    return chat


def _block_text(block: Any, path: str) -> str:
    """Return the text of a block. Raises RequestError for a block of another type."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    text = block.get("text") if kind == "text" else None
    if not isinstance(text, str):
        raise RequestError(f"{path} has a block of type {safe_repr(kind)}: only text is supported here")
    return text


def _block_content(role: str, blocks: Sequence[Any], path: str) -> Content:
    """Return blocks of text and images as the content of a message: one text unless there are images."""
    parts = []
    for index, block in enumerate(blocks):
        place = f"{path}[{index}]"
        if isinstance(block, Mapping) and block.get("type") == "image":
            check_image_role(role, place)
            parts.append(anthropic_image(block, place))
        else:
            parts.append(text_part(_block_text(block, place)))
    return join_text(parts)


def _result_content(block: Mapping[str, Any], path: str) -> Content:
    """Return the content of a tool's result."""
    content: Any = block.get("content") or ""
    if not isinstance(content, str | list):
        raise RequestError(f"{path}.content is {safe_repr(content)}: it must be a string or a list of blocks")
    result = content if isinstance(content, str) else _block_content("tool", content, f"{path}.content")
    if not block.get("is_error"):
        return result
    return f"Error: {result}" if isinstance(result, str) else [text_part("Error: "), *result]


def _user_messages(role: str, blocks: Sequence[Any], path: str) -> list[dict[str, Any]]:
    results = []
    parts = []
    for index, block in enumerate(blocks):
        place = f"{path}.content[{index}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_result":
            content = _result_content(block, place)
            results.append({"role": "tool", "content": content, "tool_call_id": str(block.get("tool_use_id", ""))})
        elif kind == "image":
            check_image_role(role, place)
            parts.append(anthropic_image(block, place))
        else:
            parts.append(text_part(_block_text(block, place)))
    return [*results, {"role": role, "content": join_text(parts)}] if parts or not results else results


def _assistant_messages(blocks: Sequence[Any], path: str) -> list[dict[str, Any]]:
    texts = []
    reasoning = []
    calls = []
    for index, block in enumerate(blocks):
        place = f"{path}.content[{index}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            name = block.get("name")
            arguments = block.get("input", {})
            if not isinstance(name, str) or not isinstance(arguments, Mapping):
                raise RequestError(f"{place} has a tool_use without a name, or whose input is not an object")
            function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
            calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
        elif kind in ("thinking", "redacted_thinking"):
            reasoning.append(str(block.get("thinking", "")))
        else:
            texts.append(_block_text(block, place))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(reasoning):
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return [message]


def tools_from_anthropic(tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """Return tools in OpenAI's format. Raises RequestError for tools that Anthropic's servers run."""
    if not tools:
        return None
    functions = []
    for index, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            raise RequestError(
                f"tools[{index}] is of type {safe_repr(tool.type)}, which is not supported: give tools with an "
                "input_schema"
            )
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        functions.append({"type": "function", "function": function})
    return functions


def tool_choice_from_anthropic(kind: str, name: str | None) -> Any:
    """Return a tool choice in OpenAI's format."""
    if kind == "tool":
        return {"type": "function", "function": {"name": name}}
    return {"auto": "auto", "any": "required", "none": "none"}[kind]
