"""The items of OpenAI's responses API as messages that templates know."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError, shown

TEXTS = ("input_text", "output_text", "text", "refusal")


def chat_messages(instructions: str | None, given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of an input, the instructions first. Raises RequestError for an item that cannot be read."""
    found: list[dict[str, Any]] = []
    if instructions:
        found.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    thought = ""
    for index, item in enumerate(given):
        kind, where = item.get("type", "message"), f"input[{index}]"
        if kind == "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise RequestError(f"{where}.role is {shown(role)}: it must be user, assistant, system or developer")
            found.append({"role": role, "content": text_of(item.get("content"), where)})
        elif kind == "reasoning":
            thought = text_of(item.get("content") or [], where, ("reasoning_text",))
            continue
        elif kind == "function_call":
            add_call(found, item, where)
        elif kind == "function_call_output":
            output = text_of(item.get("output"), where)
            found.append({"role": "tool", "content": output, "tool_call_id": str(item.get("call_id", ""))})
        else:
            raise RequestError(f"{where} is of type {shown(kind)}, which cannot be read: give messages and calls")
        if thought and found[-1]["role"] == "assistant":
            found[-1]["reasoning_content"] = thought
        thought = ""
    return found


def add_call(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    """Add a call to the message of the assistant that the messages end with, or to a new one."""
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise RequestError(f"{where} is a function_call without a name, or whose arguments are no text")
    call = {
        "id": str(item.get("call_id", "")),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def text_of(content: Any, where: str, kinds: Sequence[str] = TEXTS) -> str:
    """The text of a content. Raises RequestError for one that is none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where} has the content {shown(content)}: it must be a text or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text", part.get("refusal")) if kind in kinds else None
        if not isinstance(text, str):
            raise RequestError(f"{where} has a part of type {shown(kind)}: only text is read")
        texts.append(text)
    return "".join(texts)


def chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools as the chat API writes them. Raises RequestError for those that OpenAI itself runs."""
    found = []
    for index, tool in enumerate(tools or []):
        if tool.get("type") != "function":
            raise RequestError(f"tools[{index}] is of type {shown(tool.get('type'))}: only functions can be had")
        function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
        found.append({"type": "function", "function": function})
    return found or None
