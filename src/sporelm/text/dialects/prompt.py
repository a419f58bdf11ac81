"""What a model is told of tools: by its template, or in words where the template says nothing of them."""

import json
import re
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from sporelm.errors import RequestError, shown
from sporelm.text.dialects.deltas import Call
from sporelm.text.dialects.dialect import Dialect
from sporelm.text.marked_text import join_marked, template_text
from sporelm.text.messages import check_messages, check_tools
from sporelm.text.rendered_prompt import RenderedPrompt
from sporelm.text.template import ChatTemplate

# What a request may set in a template: name -> type. A template must not be given names that it did not expect.
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
_RESULT_BEGINS, _RESULT_ENDS = template_text("<tool_response>\n"), template_text("\n</tool_response>")
EXAMPLE = Call("", "function_name", '{"argument_name": "value"}')


def check_variables(given: Any) -> dict[str, Any]:
    """A request's variables for its template, each of a name and a type that is known. Raises RequestError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError(f"chat_template_kwargs is {shown(given)}: it must be an object")
    for name, value in given.items():
        if name not in VARIABLES:
            raise RequestError(f"chat_template_kwargs has {shown(name)}: only {', '.join(VARIABLES)} are taken")
        kind = VARIABLES[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            wanted = kind.__name__ if isinstance(kind, type) else "value"
            raise RequestError(f"chat_template_kwargs: {name} is {shown(value)}; it must be a {wanted}")
    return dict(given)


def render_with_tools(
    template: ChatTemplate,
    dialect: Dialect,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> RenderedPrompt:
    """The text of a chat with tools, whatever the template knows of them.

    Where it does not tell the model of tools, the system message does; where it does not write calls and results, they
    become text in the dialect's form and messages of the user. `variables` are those of `ChatTemplate.render`. Raises
    as that does.
    """
    told = check_messages(messages)
    given = [_filled(tool) for tool in check_tools(tools)] if tools else []
    told = [_with_fitting_ids(message, dialect) for message in told]
    if not template.writes_calls:
        told = [_with_calls_as_text(message, dialect) for message in told]
    if not template.writes_results or not (template.takes_tools or template.writes_calls):
        told = _with_results_as_text(told)
    if given and not template.takes_tools:
        role = "system" if template.takes_system else "user"
        told, given = _with_instructions(told, instructions(dialect, given), role), []
    return template.render_checked(told, given, **variables)


def instructions(dialect: Dialect, tools: Sequence[Mapping[str, Any]]) -> str:
    """What tools there are, and how to call them, in words. What is said of the tools is marked as content, the rest as
    the template's own text."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return join_marked(
        [
            template_text("You may call these functions, each given with the JSON schema of its arguments:\n"),
            listed,
            template_text(
                "\n\nTo call one, answer with exactly this form, with its name and your arguments:\n"
                f"{dialect.written([EXAMPLE])}\n"
                "Its result comes with the next message. Answer in words where no function is needed."
            ),
        ]
    )


def _filled(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with the fields that may be missing, which some templates read all the same."""
    function = tool["function"]
    schema = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    more = {"description": function.get("description") or "", "parameters": schema}
    return {**tool, "function": {**function, **more}}


def _with_fitting_ids(message: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    found = dict(message)
    if isinstance(found.get("tool_call_id"), str):
        found["tool_call_id"] = dialect.fitting_id(found["tool_call_id"])
    if found.get("tool_calls"):
        found["tool_calls"] = [
            {**call, "id": dialect.fitting_id(call["id"])} if isinstance(call.get("id"), str) else call
            for call in found["tool_calls"]
        ]
    return found


def _with_calls_as_text(message: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    written = written_calls(dialect, [call.get("function", call) for call in message["tool_calls"]])
    found = {name: value for name, value in message.items() if name != "tool_calls"}
    content = _text(message.get("content"))
    return {**found, "content": join_marked([content, "\n", written]) if content else written}


def written_calls(dialect: Dialect, functions: Sequence[Mapping[str, Any]]) -> str:
    """Return calls {"name", "arguments"} in the dialect's format: its delimiters are template text, names and arguments
    are content. Everything is content if the two cannot be separated."""
    text = dialect.written([_call(each["name"], each["arguments"]) for each in functions])
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

    form = dialect.written([_call(stand_in(each["name"]), stand_in(each["arguments"])) for each in functions])
    first, *pieces = re.split(f"x{nonce}([0-9]+)x", form)
    if not text.startswith(first):
        return text
    found: list[str] = [template_text(first)]
    at = len(first)
    for number, after in zip(pieces[::2], pieces[1::2], strict=True):
        ways = sorted(_ways(texts[int(number)]), key=len, reverse=True)
        content = next((way for way in ways if text.startswith(way + after, at)), None)
        if content is None:
            return text
        found += [content, template_text(after)]
        at += len(content) + len(after)
    return join_marked(found) if at == len(text) else text


def _call(name: str, arguments: Mapping[str, Any]) -> Call:
    return Call("", name, json.dumps(arguments, ensure_ascii=False))


def _ways(text: str) -> set[str]:
    """Return the spellings that dialects use for a string: raw, or quoted as JSON or Python."""
    quoted = [json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text)]
    return {text, *quoted, *(each[1:-1] for each in quoted)}


def _with_results_as_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results that follow each other as one message of the user: many templates want turns to alternate."""
    found: list[dict[str, Any]] = []
    open_result = False
    for message in messages:
        if message["role"] != "tool":
            found.append(message)
            open_result = False
            continue
        text = join_marked([_RESULT_BEGINS, _text(message.get("content")), _RESULT_ENDS])
        if open_result:
            found[-1]["content"] = join_marked([found[-1]["content"], "\n", text])
        else:
            found.append({"role": "user", "content": text})
            open_result = True
    return found


def _with_instructions(messages: Sequence[dict[str, Any]], text: str, role: str) -> list[dict[str, Any]]:
    """The instructions after what the system says, or, where only a user may speak, before what that says first."""
    first, others = messages[0], messages[1:]
    said = _text(first.get("content"))
    if first["role"] in ("system", "developer"):
        return [{**first, "content": join_marked([said, "\n\n", text])}, *others]
    if role == first["role"]:
        return [{**first, "content": join_marked([text, "\n\n", said])}, *others]
    return [{"role": role, "content": text}, *messages]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return join_marked(part["text"] for part in content)
    return content or ""
