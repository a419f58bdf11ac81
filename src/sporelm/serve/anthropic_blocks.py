"""Anthropic's messages, which are lists of blocks, as the messages that templates know."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError, shown


def chat_messages(system: str | list[dict[str, Any]] | None, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The messages, the system's first. A block with a tool's result becomes a message of the role `tool`.

    Raises RequestError for a block that cannot be read.
    """
    found: list[dict[str, Any]] = []
    if system:
        text = system if isinstance(system, str) else "".join(_text(block, "system") for block in system)
        found.append({"role": "system", "content": text})
    for index, message in enumerate(messages):
        role, content, where = message.get("role"), message.get("content"), f"messages[{index}]"
        if role not in ("user", "assistant", "system"):
            raise RequestError(f"{where}.role is {shown(role)}: it must be user or assistant")
        if isinstance(content, str):
            found.append({"role": role, "content": content})
        elif isinstance(content, list):
            found += _assistant(content, where) if role == "assistant" else _user(role, content, where)
        else:
            raise RequestError(f"{where}.content is {shown(content)}: it must be a text or a list of blocks")
    return found


def _text(block: Any, where: str) -> str:
    """The text of a block. Raises RequestError for one of another type."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    text = block.get("text") if kind == "text" else None
    if not isinstance(text, str):
        raise RequestError(f"{where} has a block of type {shown(kind)}: only text is read here")
    return text


def _user(role: str, blocks: Sequence[Any], where: str) -> list[dict[str, Any]]:
    results, texts = [], []
    for block in blocks:
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            content = block.get("content") or ""
            text = content if isinstance(content, str) else "".join(_text(each, where) for each in content)
            if block.get("is_error"):
                text = f"Error: {text}"
            results.append({"role": "tool", "content": text, "tool_call_id": str(block.get("tool_use_id", ""))})
        else:
            texts.append(_text(block, where))
    return [*results, {"role": role, "content": "".join(texts)}] if texts or not results else results


def _assistant(blocks: Sequence[Any], where: str) -> list[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            name, given = block.get("name"), block.get("input", {})
            if not isinstance(name, str) or not isinstance(given, Mapping):
                raise RequestError(f"{where} has a tool_use without a name or with an input that is no object")
            function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
            calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
        elif kind in ("thinking", "redacted_thinking"):
            thoughts.append(str(block.get("thinking", "")))
        else:
            texts.append(_text(block, where))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def chat_tools(tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """Tools as OpenAI's API writes them. Raises RequestError for those that Anthropic itself runs."""
    if not tools:
        return None
    found = []
    for tool in tools:
        if tool.type not in (None, "custom"):
            raise RequestError(f"a tool of type {shown(tool.type)} cannot be had: give tools with an input_schema")
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        found.append({"type": "function", "function": function})
    return found


def choice_of(kind: str, name: str | None) -> Any:
    """A tool choice as OpenAI's API writes it."""
    if kind == "tool":
        return {"type": "function", "function": {"name": name}}
    return {"auto": "auto", "any": "required", "none": "none"}[kind]
