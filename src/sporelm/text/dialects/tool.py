"""The functions that a model may call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.chat_templates.chat_messages import check_tools

MAX_REFERENCE_STEPS = 16  # for chains of references, and for nested choices


@dataclass(frozen=True)
class Tool:
    """A function: its name, the JSON schema of its arguments, and its description."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""

    def types(self, argument: str) -> frozenset[str]:
        """Return the JSON types that an argument may have; none if the schema does not define them."""
        properties = self.parameters.get("properties")
        return find_types(properties.get(argument) if isinstance(properties, Mapping) else None, self.parameters)


def parse_tools(given: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """Return tools from their form in the OpenAI API. Raises RequestError, as `check_tools`."""
    if not given:
        return ()
    functions = [tool["function"] for tool in check_tools(given)]
    return tuple(Tool(each["name"], each.get("parameters") or {}, each.get("description") or "") for each in functions)


def resolve_tool_choice(tools: Sequence[Tool], choice: Any) -> tuple[Tool, ...] | None:
    """Return the tools, one of them to be called; None if the model may decide.

    choice    None, "auto" or "none": the model decides; "required" or "any": any of them; {"type": "function",
              "function": {"name": ...}}, {"name": ...} or {"type": "function", "name": ...}: that one

    Raises RequestError for another value, or for a name that is not among the tools.
    """
    if choice is None or choice in ("auto", "none"):
        return None
    if choice in ("required", "any"):
        if not tools:
            raise RequestError(f"tool_choice is {choice!r}, but there are no tools; give tools")
        return tuple(tools)
    inner = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise RequestError(
            f"tool_choice is {choice!r:.80}; it must be 'auto', 'none', 'required' or an object that names a function"
        )
    matching = tuple(tool for tool in tools if tool.name == name)
    if not matching:
        raise RequestError(f"tool_choice names {name!r:.80}, which is not among the tools")
    return matching


def select_allowed_tools(
    tools: Sequence[Mapping[str, Any]] | None, choice: Any
) -> tuple[Sequence[Mapping[str, Any]] | None, Any]:
    """Return the tools that may be called and the choice among them, for a choice that names several tools.

    Such a choice is {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}, or the
    same without the object inside. Raises RequestError if it is malformed, or names an unknown tool.
    """
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return tools, choice
    inner = choice.get("allowed_tools", choice)
    named = inner.get("tools") if isinstance(inner, Mapping) else None
    if not isinstance(named, list) or not named or inner.get("mode") not in ("auto", "required"):
        raise RequestError("tool_choice of type 'allowed_tools' needs a mode, 'auto' or 'required', and tools")
    parsed = parse_tools(tools)
    choices = [resolve_tool_choice(parsed, entry) or () for entry in named]
    names = {tool.name for chosen in choices for tool in chosen}
    return [tool for tool in tools or () if tool["function"]["name"] in names], inner["mode"]


def resolve_reference(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema, or the target of its reference in the root schema; empty if there is no target."""
    for _ in range(MAX_REFERENCE_STEPS):
        inner = schema if isinstance(schema, Mapping) else {}
        several = inner.get("allOf")
        if isinstance(several, list) and len(several) == 1 and "type" not in inner:
            schema = several[0]
            continue
        target = inner.get("$ref")
        if not isinstance(target, str):
            break
        schema = root
        for word in target.removeprefix("#").split("/")[1:]:
            name = word.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def add_definitions(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a schema with the definitions that its references need."""
    definitions: dict[str, Any] = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return {**definitions, **schema}


def find_types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows, as far as it defines them; "any" for values that are not strings."""
    schema = resolve_reference(schema, root)
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset((kinds,))
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    values = schema.get("enum") if "enum" in schema else [schema["const"]] if "const" in schema else None
    if isinstance(values, list):
        return frozenset("string" if isinstance(value, str) else "any" for value in values)
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list) and depth < MAX_REFERENCE_STEPS:
            found = [find_types(each, root, depth + 1) for each in schema[name]]
            return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()
