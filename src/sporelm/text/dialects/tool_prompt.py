"""Prompts with tools: by the chat template, or as instructions in the prompt if the template does not support tools."""

import json
import re
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from sporelm.errors import RequestError, safe_repr
from sporelm.text.chat_templates.chat_messages import check_messages, check_tools, join_content
from sporelm.text.chat_templates.chat_template import ChatTemplate
from sporelm.text.chat_templates.marked_text import join_marked, template_text
from sporelm.text.chat_templates.rendered_prompt import RenderedPrompt
from sporelm.text.dialects.deltas import ToolCall
from sporelm.text.dialects.dialect import Dialect

# Template variables that a request may set: name -> type. A template must not get unexpected names.
VARIABLES: dict[str, type | tuple[type, ...]] = {
    "enable_thinking": bool,
    "thinking": bool,
    "thinking_mode": str,
    "thinking_effort": str,
    "reasoning_strength": str,
    "preserve_thinking": bool,
    "clear_thinking": bool,
    "reasoning_effort": str,
    "thinking_budget": int,
    "model_identity": str,
    "builtin_tools": list,
    "tools_in_user_message": bool,
    "date_string": str,
    "documents": list,
    "controls": dict,
    "add_vision_id": bool,
    "xml_tools": list,
    "python_tools": list,
}
_RESULT_START, _RESULT_END = template_text("<tool_response>\n"), template_text("\n</tool_response>")
EXAMPLE = ToolCall("", "function_name", '{"argument_name": "value"}')


def check_variables(given: Any) -> dict[str, Any]:
    """Return a request's template variables, checked for known names and types. Raises RequestError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError(f"chat_template_kwargs is {safe_repr(given)}: it must be an object")
    for name, value in given.items():
        if name not in VARIABLES:
            raise RequestError(f"chat_template_kwargs has {safe_repr(name)}: only {', '.join(VARIABLES)} are supported")
        kind = VARIABLES[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            expected = kind.__name__ if isinstance(kind, type) else "value"
            raise RequestError(f"chat_template_kwargs: {name} is {safe_repr(value)}; it must be a {expected}")
    return dict(given)


def render_with_tools(
    template: ChatTemplate,
    dialect: Dialect,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> RenderedPrompt:
    """Render a chat with tools, whether or not the template supports them.

    If the template does not render tools, the system message describes them. If it does not render calls and results,
    they become text in the dialect's format and user messages. `variables` are those of `ChatTemplate.render`. Raises
    what that raises.
    """
    checked = check_messages(messages)
    definitions = [_fill_in(tool) for tool in check_tools(tools)] if tools else []
    checked = [_with_normalized_ids(message, dialect) for message in checked]
    if not template.renders_tool_calls:
        checked = [_with_calls_as_text(message, dialect, template.image_text) for message in checked]
    if not template.renders_tool_results or not (template.supports_tools or template.renders_tool_calls):
        checked = _with_results_as_text(checked, template.image_text)
    if definitions and not template.supports_tools:
        role = "system" if template.supports_system_role else "user"
        checked = _with_instructions(checked, write_instructions(dialect, definitions), role, template.image_text)
        definitions = []
    return template.render_checked(checked, definitions, **variables)


def write_instructions(dialect: Dialect, tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a description of the tools and of the call format. The tools' definitions are marked as content, the rest
    as template text."""
    definitions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return join_marked(
        [
            template_text("You may call these functions, each given with the JSON schema of its arguments:\n"),
            definitions,
            template_text(
                "\n\nTo call one, answer with exactly this form, with its name and your arguments:\n"
                f"{dialect.format_calls([EXAMPLE])}\n"
                "Its result comes with the next message. Answer in words where no function is needed."
            ),
        ]
    )


def _fill_in(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with the fields that may be missing; some templates read them anyway."""
    function = tool["function"]
    schema = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    defaults = {"description": function.get("description") or "", "parameters": schema}
    return {**tool, "function": {**function, **defaults}}


def _with_normalized_ids(message: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    found = dict(message)
    if isinstance(found.get("tool_call_id"), str):
        found["tool_call_id"] = dialect.normalize_call_id(found["tool_call_id"])
    if found.get("tool_calls"):
        found["tool_calls"] = [
            {**call, "id": dialect.normalize_call_id(call["id"])} if isinstance(call.get("id"), str) else call
            for call in found["tool_calls"]
        ]
    return found


def _with_calls_as_text(message: dict[str, Any], dialect: Dialect, image_text: str) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    written = format_marked_calls(dialect, [call.get("function", call) for call in message["tool_calls"]])
    found = {name: value for name, value in message.items() if name != "tool_calls"}
    content = _text(message.get("content"), image_text)
    return {**found, "content": join_marked([content, "\n", written]) if content else written}


def format_marked_calls(dialect: Dialect, functions: Sequence[Mapping[str, Any]]) -> str:
    """Return calls {"name", "arguments"} in the dialect's format: its delimiters are template text, names and arguments
    are content. Everything is content if the two cannot be separated."""
    text = dialect.format_calls([_call(each["name"], each["arguments"]) for each in functions])
    texts: list[str] = []
    nonce = token_hex(8)

    def stand_in(value: Any) -> Any:
        if isinstance(value, str):
            texts.append(value)
            return f"x{nonce}{len(texts) - 1}x"
        if isinstance(value, list):
            return [stand_in(item) for item in value]
        if isinstance(value, dict):
            return {stand_in(key): stand_in(item) for key, item in value.items()}
        return value

    form = dialect.format_calls([_call(stand_in(each["name"]), stand_in(each["arguments"])) for each in functions])
    first, *pieces = re.split(f"x{nonce}([0-9]+)x", form)
    if not text.startswith(first):
        return text
    found: list[str] = [template_text(first)]
    at = len(first)
    for number, after in zip(pieces[::2], pieces[1::2], strict=True):
        ways = sorted(_list_spellings(texts[int(number)]), key=len, reverse=True)
        content = next((way for way in ways if text.startswith(way + after, at)), None)
        if content is None:
            return text
        found += [content, template_text(after)]
        at += len(content) + len(after)
    return join_marked(found) if at == len(text) else text


def _call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    return ToolCall("", name, json.dumps(arguments, ensure_ascii=False))


def _list_spellings(text: str) -> set[str]:
    """Return the spellings that dialects use for a string: raw, or quoted as JSON or Python."""
    quoted = [json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text)]
    return {text, *quoted, *(each[1:-1] for each in quoted)}


def _with_results_as_text(messages: Sequence[dict[str, Any]], image_text: str) -> list[dict[str, Any]]:
    """Join successive tool results into one user message: many templates require alternating turns."""
    found: list[dict[str, Any]] = []
    open_result = False
    for message in messages:
        if message["role"] != "tool":
            found.append(message)
            open_result = False
            continue
        text = join_marked([_RESULT_START, _text(message.get("content"), image_text), _RESULT_END])
        if open_result:
            found[-1]["content"] = join_marked([found[-1]["content"], "\n", text])
        else:
            found.append({"role": "user", "content": text})
            open_result = True
    return found


def _with_instructions(
    messages: Sequence[dict[str, Any]], text: str, role: str, image_text: str
) -> list[dict[str, Any]]:
    """The instructions after what the system says, or, where only a user may speak, before what that says first."""
    first, others = messages[0], messages[1:]
    text_content = _text(first.get("content"), image_text)
    if first["role"] in ("system", "developer"):
        return [{**first, "content": join_marked([text_content, "\n\n", text])}, *others]
    if role == first["role"]:
        return [{**first, "content": join_marked([text, "\n\n", text_content])}, *others]
    return [{"role": role, "content": text}, *messages]


def _text(content: Any, image_text: str) -> str:
    return join_content(content, image_text) if isinstance(content, list) else content or ""
