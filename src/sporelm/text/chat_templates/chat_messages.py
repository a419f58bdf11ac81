"""Checks and adapts the messages of a chat, and its tools, before a template renders them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.chat_templates.marked_text import join_marked
from sporelm.text.unicode_check import find_invalid_character

MAX_NESTING = 32
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128  # of one message
MAX_TOOLS_CHARACTERS = 1 << 18  # of all tools together
REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")  # of the reasoning in messages, in templates

IMAGE = "image"  # the type of parts that stand for a picture
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")  # OpenAI takes 64, Anthropic 128


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Return the messages as new plain data: a template must not get objects of the caller.

    Each is a mapping with a `role` (text) and a `content`: a text, or a list of parts {"type": "text", "text": ...} and
    {"type": "image"}, which stands for a picture.
    A message with `tool_calls` may go without content; its calls are checked too, and arguments that are the
    text of a JSON object become that object, as templates expect. `tool_call_id` is a text. Other keys
    pass through if they are plain data.
    Raises RequestError with the index of the message at fault.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise RequestError(f"messages is a {type(messages).__name__}; it must be a list of {{role, content}}")
    if not messages:
        raise RequestError("messages is empty; give at least one message")
    return [_check_message(message, f"message {index}") for index, message in enumerate(messages)]


def _check_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is a {type(message).__name__}; it must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}: role is {role!r:.60}; it must be a string such as 'user'")
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        for index, part in enumerate(content):
            _check_part(part, f"{where}, part {index}")
    elif content is None:
        if not message.get("tool_calls"):
            raise RequestError(f"{where} has no content; give a string or a list of parts")
    elif not isinstance(content, str):
        raise RequestError(f"{where}: content is a {type(content).__name__}; it must be a string or a list of parts")
    plain: dict[str, Any] = to_plain_data(message, where)
    _check_texts(plain.get("content"), f"{where}: its content")
    if plain.get("tool_calls") is not None:
        plain["tool_calls"] = _check_calls(plain["tool_calls"], where)
    for name in ("tool_call_id", "name", *REASONING_NAMES):
        if not isinstance(plain.get(name, ""), str | None):
            raise RequestError(f"{where}: {name} is a {type(plain[name]).__name__}; it must be a string")
    return plain


def _check_texts(content: Any, where: str) -> None:
    """Raise RequestError for text that is not valid Unicode, with its position in that text: the tokenizer would report
    the position in the rendered chat."""
    for text in [content] if isinstance(content, str) else [part.get("text", "") for part in content or ()]:
        if (invalid := find_invalid_character(text)) is not None:
            raise RequestError(f"{where} contains {invalid}; remove it")


def _check_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Return the calls of a message, {"function": {"name", "arguments"}} or {"name", "arguments"}, with arguments as
    objects.

    Raises RequestError with the index of the call at fault.
    """
    if not isinstance(calls, list):
        raise RequestError(f"{where}: tool_calls is a {type(calls).__name__}; it must be a list")
    if len(calls) > MAX_TOOL_CALLS:
        raise RequestError(f"{where} has too many tool calls (got {len(calls)}; allowed {MAX_TOOL_CALLS})")
    checked = []
    for index, call in enumerate(calls):
        place = f"{where}, tool call {index}"
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise RequestError(f"{place} names no function; it must be {{function: {{name, arguments}}}}")
        arguments = _parse_arguments(function.get("arguments"), place)
        if call is function:
            checked.append({**call, "arguments": arguments})
        else:
            checked.append({**call, "function": {**function, "arguments": arguments}})
    return checked


def _parse_arguments(arguments: Any, where: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where}: its arguments are not valid JSON: {str(error)[:100]}") from None
        arguments = to_plain_data(arguments, f"{where}: its arguments")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise RequestError(
            f"{where}: its arguments are a {type(arguments).__name__}; they must be an object, or a string with one"
        )
    return arguments


def check_tools(tools: Any) -> list[dict[str, Any]]:
    """Return tools as plain data: {"type": "function", "function": {"name", "description", "parameters"}}.

    Names are unique. `parameters` is a JSON schema of an object, or missing. Raises RequestError with the index of the
    tool at fault.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise RequestError(f"tools is a {type(tools).__name__}; it must be a list of functions")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"tools has too many functions (got {len(tools)}; allowed {MAX_TOOLS})")
    names: set[str] = set()
    checked = []
    for index, tool in enumerate(tools):
        where = f"tool {index}"
        plain = to_plain_data(tool, where)
        function = plain.get("function") if isinstance(plain, dict) else None
        if not isinstance(function, dict) or plain.get("type", "function") != "function":
            raise RequestError(f"{where} is not a function; it must be {{type: 'function', function: {{name, ...}}}}")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError(f"{where}: its name is {name!r:.80}; it must be 1 to 128 of a-z, A-Z, 0-9, _, - and .")
        if name in names:
            raise RequestError(f"{where} has the name {name!r} of another tool; names must differ")
        names.add(name)
        _check_function(function, where)
        checked.append(plain if "type" in plain else {"type": "function", **plain})
    if (size := measure_size(checked)) > MAX_TOOLS_CHARACTERS:
        raise RequestError(f"the tools are too long (got {size} characters; allowed {MAX_TOOLS_CHARACTERS})")
    return checked


def _check_function(function: dict[str, Any], where: str) -> None:
    if not isinstance(function.get("description"), str | None):
        raise RequestError(f"{where}: its description must be a string")
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
        raise RequestError(f"{where}: the required parameters must be a list of names")


def _check_part(part: Any, where: str) -> None:
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} is a {type(part).__name__}; it must be an object with type and text")
    kind = part.get("type")
    if kind == IMAGE and part.keys() == {"type"}:
        return
    if kind != "text":
        raise RequestError(f"{where} has type {kind!r:.60}; only 'text' and 'image' are supported")
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{where}: text is a {type(part.get('text')).__name__}; it must be a string")


def to_plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """Return a copy of JSON-like data in exactly dict, list, str, int, float, bool and None.

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
                raise RequestError(f"{where} has the key {key!r:.60}; keys must be strings")
        return {str.__str__(key): to_plain_data(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain_data(item, where, depth + 1) for item in value]
    raise RequestError(
        f"{where} contains a {type(value).__name__}; only strings, numbers, lists and objects are allowed"
    )


def with_known_roles(messages: Any) -> Any:
    """Return messages with the role `developer`, OpenAI's newer name, as `system`, which templates support. Every
    interface calls this, so that all accept the same roles.

    Raises RequestError for OpenAI's deprecated function calling, which predates tools: templates would ignore it.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        return messages  # `check_messages` refuses it
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            continue
        if message.get("role") == "function" or message.get("function_call") is not None:
            raise RequestError(
                f"message {index}: deprecated function calling is not supported. Use tool_calls and the role 'tool'"
            )
    return [_rename_developer(message) for message in messages]


def _rename_developer(message: Any) -> Any:
    is_developer = isinstance(message, Mapping) and message.get("role") == "developer"
    return {**message, "role": "system"} if is_developer else message


def is_image_part(part: Any) -> bool:
    """Return whether a part of a checked message stands for a picture."""
    return isinstance(part, Mapping) and part.get("type") == IMAGE


def count_images(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of pictures in checked messages."""
    contents = [message.get("content") for message in messages]
    return sum(is_image_part(part) for content in contents if isinstance(content, list) for part in content)


def join_content(parts: Sequence[Mapping[str, Any]], image_text: str) -> str:
    """Return parts as one text, with `image_text` for each picture."""
    return join_marked(image_text if is_image_part(part) else part["text"] for part in parts)


def join_parts(messages: list[dict[str, Any]], image_text: str = "") -> list[dict[str, Any]]:
    """Return the messages with each list of parts as one text, for templates that do not support parts."""
    return [
        {**message, "content": join_content(message["content"], image_text)}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def add_empty_content(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with an empty text in place of missing content, for templates that need one."""
    return [message if message.get("content") is not None else {**message, "content": ""} for message in messages]


def add_reasoning(
    messages: list[dict[str, Any]], names: Sequence[str], rejected_names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the messages with their reasoning under each name that a template uses, except, beside content and calls,
    under `rejected_names`."""
    result = []
    for message in messages:
        text = next((message[name] for name in REASONING_NAMES if message.get(name)), None)
        if text:
            rejected = rejected_names if message.get("content") and message.get("tool_calls") else ()
            message = {**{name: text for name in names if name not in rejected}, **message}
        result.append(message)
    return result


def measure_size(value: Any) -> int:
    """Return the number of characters in plain data; each value counts at least one."""
    if isinstance(value, str):
        return len(value) + 1
    if isinstance(value, dict):
        return 1 + sum(len(key) + measure_size(item) for key, item in value.items())
    if isinstance(value, list):
        return 1 + sum(map(measure_size, value))
    return 1
