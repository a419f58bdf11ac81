"""The messages of a chat: what they must look like before a template sees them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.marked_text import join_marked
from sporelm.text.valid_text import invalid_character

MAX_NESTING = 32
MOST_TOOLS = 128
MOST_CALLS = 128  # of one message
LONGEST_TOOLS = 1 << 18  # characters of all tools together
REASONING = ("reasoning_content", "reasoning", "thinking")  # what templates call it

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")  # OpenAI takes 64, Anthropic 128


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as plain data of our own: a template may hold no object of the caller's.

    Each is a mapping with a `role` (text) and a `content`: a text, or a list of parts {"type": "text", "text": ...}.
    A message with `tool_calls` may go without content; its calls are checked by `_check_calls`, and arguments that are
    the text of a JSON object become that object, which is what templates take. `tool_call_id` is a text. Other keys
    pass through if they are plain data.
    Raises RequestError with the index of the message at fault.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise RequestError(f"messages is a {type(messages).__name__}; it must be a list of {{role, content}}")
    if not messages:
        raise RequestError("messages is empty; give at least one message")
    return [_message(message, f"message {index}") for index, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is a {type(message).__name__}; it must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}: role is {role!r:.60}; it must be a text such as 'user'")
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        for index, part in enumerate(content):
            _check_part(part, f"{where}, part {index}")
    elif content is None:
        if not message.get("tool_calls"):
            raise RequestError(f"{where} has no content; give a text or a list of parts")
    elif not isinstance(content, str):
        raise RequestError(f"{where}: content is a {type(content).__name__}; it must be a text or a list of parts")
    plain: dict[str, Any] = plain_data(message, where)
    _check_texts(plain.get("content"), f"{where}: its content")
    if plain.get("tool_calls") is not None:
        plain["tool_calls"] = _checked_calls(plain["tool_calls"], where)
    for name in ("tool_call_id", "name", *REASONING):
        if not isinstance(plain.get(name, ""), str | None):
            raise RequestError(f"{where}: {name} is a {type(plain[name]).__name__}; it must be a text")
    return plain


def _check_texts(content: Any, where: str) -> None:
    """Raise RequestError for text that is not valid Unicode, with its position in that text: the tokenizer would report
    the position in the rendered chat."""
    for text in [content] if isinstance(content, str) else [part["text"] for part in content or ()]:
        if (wrong := invalid_character(text)) is not None:
            raise RequestError(f"{where} holds {wrong}; remove it")


def _checked_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """The calls of a message, {"function": {"name", "arguments"}} or {"name", "arguments"}; arguments become objects.

    Raises RequestError with the index of the call at fault.
    """
    if not isinstance(calls, list):
        raise RequestError(f"{where}: tool_calls is a {type(calls).__name__}; it must be a list")
    if len(calls) > MOST_CALLS:
        raise RequestError(f"{where} has {len(calls)} tool calls: at most {MOST_CALLS} are taken")
    found = []
    for index, call in enumerate(calls):
        place = f"{where}, tool call {index}"
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise RequestError(f"{place} names no function; it must be {{function: {{name, arguments}}}}")
        arguments = _object(function.get("arguments"), place)
        if call is function:
            found.append({**call, "arguments": arguments})
        else:
            found.append({**call, "function": {**function, "arguments": arguments}})
    return found


def _object(arguments: Any, where: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where}: its arguments are no JSON: {str(error)[:100]}") from None
        arguments = plain_data(arguments, f"{where}: its arguments")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise RequestError(
            f"{where}: its arguments are a {type(arguments).__name__}; they must be an object, or its text"
        )
    return arguments


def check_tools(tools: Any) -> list[dict[str, Any]]:
    """Tools as plain data: {"type": "function", "function": {"name", "description", "parameters"}}, each name once.

    `parameters` is a JSON schema of an object, or missing. Raises RequestError with the index of the tool at fault.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise RequestError(f"tools is a {type(tools).__name__}; it must be a list of functions")
    if len(tools) > MOST_TOOLS:
        raise RequestError(f"tools has {len(tools)} functions: at most {MOST_TOOLS} are taken")
    names: set[str] = set()
    found = []
    for index, tool in enumerate(tools):
        where = f"tool {index}"
        plain = plain_data(tool, where)
        function = plain.get("function") if isinstance(plain, dict) else None
        if not isinstance(function, dict) or plain.get("type", "function") != "function":
            raise RequestError(f"{where} is no function; it must be {{type: 'function', function: {{name, ...}}}}")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError(f"{where}: its name is {name!r:.80}; it must be 1 to 128 of a-z, A-Z, 0-9, _, - and .")
        if name in names:
            raise RequestError(f"{where} has the name {name!r} of another tool; names must differ")
        names.add(name)
        _check_function(function, where)
        found.append(plain if "type" in plain else {"type": "function", **plain})
    if (size := size_of(found)) > LONGEST_TOOLS:
        raise RequestError(f"the tools have {size} characters: at most {LONGEST_TOOLS} are taken")
    return found


def _check_function(function: dict[str, Any], where: str) -> None:
    if not isinstance(function.get("description"), str | None):
        raise RequestError(f"{where}: its description must be a text")
    schema = function.get("parameters")
    if not isinstance(schema, dict | None):
        raise RequestError(
            f"{where}: its parameters are a {type(schema).__name__}; they must be a JSON schema, an object"
        )
    if schema and schema.get("type", "object") != "object":
        raise RequestError(f"{where}: its parameters have type {schema['type']!r:.60}; it must be 'object'")
    if schema and not isinstance(schema.get("properties"), dict | None):
        raise RequestError(f"{where}: the properties of its parameters must be an object")
    for name, inner in ((schema or {}).get("properties") or {}).items():
        if not isinstance(inner, dict):
            raise RequestError(
                f"{where}: its parameter {name!r:.60} is a {type(inner).__name__}; it must be a JSON schema"
            )
    required = schema.get("required") if schema else None
    if not isinstance(required, list | None) or not all(isinstance(name, str) for name in required or ()):
        raise RequestError(f"{where}: what is required of its parameters must be a list of names")


def _check_part(part: Any, where: str) -> None:
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} is a {type(part).__name__}; it must be an object with type and text")
    kind = part.get("type")
    if kind != "text":
        raise RequestError(f"{where} has type {kind!r:.60}; only 'text' is supported")
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{where}: text is a {type(part.get('text')).__name__}; it must be a text")


def plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of JSON-like data in exactly dict, list, str, int, float, bool and None.

    Raises RequestError for anything else, and for data nested deeper than MAX_NESTING.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth >= MAX_NESTING:
        raise RequestError(f"{where} nests deeper than {MAX_NESTING} levels")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RequestError(f"{where} has the key {key!r:.60}; keys must be texts")
        return {str.__str__(key): plain_data(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item, where, depth + 1) for item in value]
    raise RequestError(f"{where} holds a {type(value).__name__}; only texts, numbers, lists and objects are taken")


def with_known_roles(messages: Any) -> Any:
    """Return messages with the role `developer`, OpenAI's newer name for it, as `system`, which templates know. Every
    interface calls this, so that all accept the same roles.

    Raises RequestError for OpenAI's deprecated function calling, which predates tools: templates would ignore it.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        return messages  # `check_messages` refuses it
    for index, each in enumerate(messages):
        if isinstance(each, Mapping) and (each.get("role") == "function" or each.get("function_call") is not None):
            raise RequestError(
                f"message {index}: deprecated function calling is not supported. Use tool_calls and the role 'tool'"
            )
    return [
        {**each, "role": "system"} if isinstance(each, Mapping) and each.get("role") == "developer" else each
        for each in messages
    ]


def joined_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with each list of parts made one text, for templates that know nothing of parts."""
    return [
        {**message, "content": join_marked(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def with_content(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with an empty text where there is no content, for templates that need one."""
    return [message if message.get("content") is not None else {**message, "content": ""} for message in messages]


def with_reasoning(
    messages: list[dict[str, Any]], names: Sequence[str], left_out: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The messages with their reasoning under each name that a template knows; not under those of `left_out`, which it
    refuses there, beside content and calls."""
    found = []
    for message in messages:
        text = next((message[name] for name in REASONING if message.get(name)), None)
        if text:
            crowded = bool(message.get("content") and message.get("tool_calls"))
            message = {**{name: text for name in names if not (crowded and name in left_out)}, **message}
        found.append(message)
    return found


def size_of(value: Any) -> int:
    """Characters in plain data, each value counting at least one."""
    if isinstance(value, str):
        return len(value) + 1
    if isinstance(value, dict):
        return 1 + sum(len(key) + size_of(item) for key, item in value.items())
    if isinstance(value, list):
        return 1 + sum(map(size_of, value))
    return 1
