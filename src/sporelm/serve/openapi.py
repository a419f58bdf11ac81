"""The description of all endpoints, as OpenAPI 3.1, and a page that shows it. Neither asks anything of other sites."""

import html
import json
from collections.abc import Sequence
from functools import cache
from inspect import cleandoc
from typing import Any

import msgspec

from sporelm import __version__
from sporelm.serve.access import KEYLESS
from sporelm.serve.endpoint import Endpoint
from sporelm.serve.failures import anthropic_shape, ollama_shape, openai_shape, session_shape


class ErrorInside(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_ctx: int | msgspec.UnsetType = msgspec.UNSET


class OpenAIError(msgspec.Struct):
    error: ErrorInside


class AnthropicErrorInside(msgspec.Struct):
    type: str
    message: str
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_ctx: int | msgspec.UnsetType = msgspec.UNSET


class AnthropicError(msgspec.Struct):
    type: str
    error: AnthropicErrorInside


class OllamaError(msgspec.Struct):
    error: str
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_ctx: int | msgspec.UnsetType = msgspec.UNSET


class SessionError(msgspec.Struct):
    status: int
    code: int
    message: str
    current_dialog_pos: int | None = None
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_ctx: int | msgspec.UnsetType = msgspec.UNSET


ERRORS: dict[Any, Any] = {
    openai_shape: OpenAIError,
    anthropic_shape: AnthropicError,
    ollama_shape: OllamaError,
    session_shape: SessionError,
}
TEMPLATE = "#/components/schemas/{name}"


def document(endpoints: Sequence[Endpoint], *, keys: bool) -> dict[str, Any]:
    """The whole description; `keys`: an API key is needed."""
    types = [each.body for each in endpoints] + [each.reply for each in endpoints]
    wanted = [kind for kind in dict.fromkeys(types) if kind is not None] + list(ERRORS.values())
    schemas, components = msgspec.json.schema_components(wanted, ref_template=TEMPLATE)
    schema_of = dict(zip(wanted, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = each.path.replace(":path}", "}")
        paths.setdefault(path, {})[each.method.lower()] = operation(each, schema_of, keys=keys)
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Sporelm", "version": __version__, "description": "Language models over HTTP."},
        "paths": paths,
        "components": {"schemas": components},
    }
    if keys:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return found


def operation(endpoint: Endpoint, schema_of: dict[Any, Any], *, keys: bool) -> dict[str, Any]:
    """One endpoint."""
    text = cleandoc(endpoint.handler.__doc__ or "")
    if endpoint.alias_of is not None:
        text = f"The same as {endpoint.alias_of}.\n\n{text}"
    content: dict[str, Any] = {}
    if endpoint.reply is not None:
        content["application/json"] = {"schema": schema_of[endpoint.reply]}
    if endpoint.streams is not None:
        content[endpoint.streams] = {"schema": {}}
    if not content:
        content["*/*"] = {"schema": {}}
    error = {"application/json": {"schema": schema_of[ERRORS[endpoint.shape]]}}
    if endpoint.path in (*KEYLESS, "/ready"):
        error = content
    told: dict[str, Any] = {
        "tags": [endpoint.tag],
        "summary": text.split("\n")[0],
        "description": text,
        "operationId": f"{endpoint.method.lower()}{endpoint.path.replace('/', '_').replace(':path', '')}",
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "What went wrong.", "content": error},
        },
    }
    names = [part[1:-1].removesuffix(":path") for part in endpoint.path.split("/") if part.startswith("{")]
    if names:
        told["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if endpoint.body is not None:
        body = {"application/json": {"schema": schema_of[endpoint.body]}}
        told["requestBody"] = {"required": True, "content": body}
    if keys and endpoint.path not in KEYLESS:
        told["security"] = [{"key": []}]
    return told


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sporelm: the API</title>
<meta name="viewport" content="width=device-width">
<style>
:root{{color-scheme:light dark}}
body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
code,pre{{font:13px/1.45 ui-monospace,monospace}} pre{{overflow:auto;padding:.6rem;background:#8881;border-radius:6px}}
summary{{cursor:pointer;padding:.35rem 0}} .method{{display:inline-block;width:4.5rem;font-weight:600}}
</style></head><body><h1>Sporelm: the API</h1>
<p>The description for programs is at <a href="openapi.json">/openapi.json</a>.</p>{parts}</body></html>
"""


@cache
def page(text: str) -> str:
    """The description, given as JSON, as a page that needs nothing but itself."""
    described = json.loads(text)
    by_tag: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            body = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            reply = told["responses"]["200"]["content"].get("application/json", {}).get("schema")
            parts = [f"<p>{html.escape(told['description'])}</p>"]
            for title, schema in (("Body", body), ("Answer", reply)):
                if schema is not None:
                    shown = json.dumps(resolved(schema, described["components"]["schemas"]), indent=1)
                    parts.append(f"<p>{title}</p><pre>{html.escape(shown)}</pre>")
            head = (
                f'<span class="method">{method.upper()}</span><code>{html.escape(path)}</code> '
                f"{html.escape(told['summary'])}"
            )
            by_tag.setdefault(told["tags"][0], []).append(
                f"<details><summary>{head}</summary>{''.join(parts)}</details>"
            )
    sections = [f"<h2>{html.escape(tag)}</h2>{''.join(found)}" for tag, found in by_tag.items()]
    return PAGE.format(parts="".join(sections))


def resolved(schema: Any, components: dict[str, Any]) -> Any:
    """A schema that names a component as that component itself."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    return components[reference.rpartition("/")[2]] if reference else schema
