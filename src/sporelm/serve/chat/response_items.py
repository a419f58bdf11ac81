"""The input items of OpenAI's responses API as messages for chat templates."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError, safe_repr
from sporelm.serve.chat.image_parts import Content, Part, check_image_role, join_text, responses_image, text_part

TEXT_PARTS = ("input_text", "output_text", "text", "refusal")


def messages_from_items(instructions: str | None, items: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of an input, the instructions first. Raises RequestError for an unsupported item."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    reasoning = ""
    for index, item in enumerate(items):
        kind = item.get("type", "message")
        path = f"input[{index}]"
        if kind == "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise RequestError(f"{path}.role is {safe_repr(role)}: it must be user, assistant, system or developer")
            messages.append({"role": role, "content": _item_content(role, item.get("content"), f"{path}.content")})
        elif kind == "reasoning":
            reasoning = content_text(item.get("content") or [], f"{path}.content", ("reasoning_text",))
            continue
        elif kind == "function_call":
            add_call(messages, item, path)
        elif kind == "function_call_output":
            output = _item_content("tool", item.get("output"), f"{path}.output")
            messages.append({"role": "tool", "content": output, "tool_call_id": str(item.get("call_id", ""))})
        else:
            raise RequestError(f"{path} is of type {safe_repr(kind)}, which is not supported: give messages and calls")
        if reasoning and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = reasoning
        reasoning = ""
    return messages


def add_call(messages: list[dict[str, Any]], item: Mapping[str, Any], path: str) -> None:
    """Add a call to the last message if that is the assistant's, else to a new one."""
    name = item.get("name")
    arguments = item.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise RequestError(f"{path} is a function_call without a name, or whose arguments are not a string")
    call = {
        "id": str(item.get("call_id", "")),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def content_text(content: Any, path: str, kinds: Sequence[str] = TEXT_PARTS) -> str:
    """Return the text of a content. Raises RequestError for content of another kind."""
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{path}[{index}]", kinds) for index, part in enumerate(_part_list(content, path)))


def _item_content(role: str, content: Any, path: str) -> Content:
    """Return the content of a message or of a tool's result: one text unless there are images."""
    if isinstance(content, str):
        return content
    parts: list[Part] = []
    for index, part in enumerate(_part_list(content, path)):
        place = f"{path}[{index}]"
        if isinstance(part, Mapping) and part.get("type") == "input_image":
            check_image_role(role, place)
            parts.append(responses_image(part, place))
        else:
            parts.append(text_part(_part_text(part, place, TEXT_PARTS)))
    return join_text(parts)


def _part_list(content: Any, path: str) -> list[Any]:
    if not isinstance(content, list):
        raise RequestError(f"{path} is {safe_repr(content)}: it must be a string or a list of parts")
    return content


def _part_text(part: Any, path: str, kinds: Sequence[str]) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text", part.get("refusal")) if kind in kinds else None
    if not isinstance(text, str):
        allowed = "text and input_image are" if kinds == TEXT_PARTS else "text is"
        raise RequestError(f"{path} is a part of type {safe_repr(kind)}: only {allowed} supported")
    return text


def tools_from_responses(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return tools in the format of the chat API. Raises RequestError for tools that OpenAI's servers run."""
    functions = []
    for index, tool in enumerate(tools or []):
        if tool.get("type") != "function":
            raise RequestError(f"tools[{index}] is of type {safe_repr(tool.get('type'))}: only functions are supported")
        function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
        functions.append({"type": "function", "function": function})
    return functions or None
