"""The functions that a model may call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sporelm.errors import RequestError
from sporelm.text.messages import check_tools

MOST_STEPS = 16  # from one reference to the next, and of choices inside each other


@dataclass(frozen=True)
class Tool:
    """A function: its name, the JSON schema of its arguments, and what it is for."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""

    def types(self, argument: str) -> frozenset[str]:
        """The JSON types that an argument may have; none where the schema does not say."""
        properties = self.parameters.get("properties")
        return types_of(properties.get(argument) if isinstance(properties, Mapping) else None, self.parameters)


def tools_of(given: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """Tools as the OpenAI API writes them. Raises RequestError, as `check_tools`."""
    if not given:
        return ()
    functions = [tool["function"] for tool in check_tools(given)]
    return tuple(Tool(each["name"], each.get("parameters") or {}, each.get("description") or "") for each in functions)


def wanted(tools: Sequence[Tool], choice: Any) -> tuple[Tool, ...] | None:
    """The tools of which one must be called; None where the model may decide.

    choice    None, "auto" or "none": the model decides; "required" or "any": any of them; {"type": "function",
              "function": {"name": ...}}, {"name": ...} or {"type": "function", "name": ...}: that one

    Raises RequestError for a choice that is none of these, or that no tool fits.
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
    found = tuple(tool for tool in tools if tool.name == name)
    if not found:
        raise RequestError(f"tool_choice names {name!r:.80}, which is not among the tools")
    return found


def allowed(tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> tuple[Sequence[Mapping[str, Any]] | None, Any]:
    """The tools that may be called and the choice among them, where a choice names several.

    Such a choice is {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}, or the
    same without the object inside. Raises RequestError for one that is malformed, or names what is not among the tools.
    """
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return tools, choice
    inner = choice.get("allowed_tools", choice)
    named = inner.get("tools") if isinstance(inner, Mapping) else None
    if not isinstance(named, list) or not named or inner.get("mode") not in ("auto", "required"):
        raise RequestError("tool_choice of type 'allowed_tools' needs a mode, 'auto' or 'required', and tools")
    given = tools_of(tools)
    wishes = [wanted(given, each) or () for each in named]
    names = {tool.name for wish in wishes for tool in wish}
    return [tool for tool in tools or () if tool["function"]["name"] in names], inner["mode"]


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema, or what it refers to within the one that it is a part of; nothing where that leads nowhere."""
    for _ in range(MOST_STEPS):
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


def with_definitions(schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema with the definitions that its references name."""
    found: dict[str, Any] = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return {**found, **schema}


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so; "any" for values that are no texts."""
    schema = resolved(schema, root)
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset((kinds,))
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    values = schema.get("enum") if "enum" in schema else [schema["const"]] if "const" in schema else None
    if isinstance(values, list):
        return frozenset("string" if isinstance(value, str) else "any" for value in values)
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list) and depth < MOST_STEPS:
            found = [types_of(each, root, depth + 1) for each in schema[name]]
            return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()
