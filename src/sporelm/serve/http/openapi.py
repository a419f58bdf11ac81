"""The description of all endpoints as OpenAPI 3.1, and a self-contained page that shows it."""

import html
import json
from collections.abc import Sequence
from functools import cache
from inspect import cleandoc
from typing import Any

import msgspec

from sporelm import __version__
from sporelm.serve.http.access_control import KEYLESS_PATHS
from sporelm.serve.http.api_errors import (
    anthropic_error_body,
    ollama_error_body,
    openai_error_body,
    session_error_body,
)
from sporelm.serve.http.endpoint import Endpoint


class OpenAIErrorObject(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_ctx: int | msgspec.UnsetType = msgspec.UNSET


class OpenAIError(msgspec.Struct):
    error: OpenAIErrorObject


class AnthropicErrorObject(msgspec.Struct):
    type: str
    message: str
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_ctx: int | msgspec.UnsetType = msgspec.UNSET


class AnthropicError(msgspec.Struct):
    type: str
    error: AnthropicErrorObject


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


ERROR_TYPES: dict[Any, Any] = {
    openai_error_body: OpenAIError,
    anthropic_error_body: AnthropicError,
    ollama_error_body: OllamaError,
    session_error_body: SessionError,
}
REF_TEMPLATE = "#/components/schemas/{name}"


def openapi_document(endpoints: Sequence[Endpoint], *, needs_key: bool) -> dict[str, Any]:
    """Return the whole description. `needs_key`: requests need an API key."""
    declared = [each.body for each in endpoints] + [each.reply for each in endpoints]
    types = [each for each in dict.fromkeys(declared) if each is not None] + list(ERROR_TYPES.values())
    schemas, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = each.path.replace(":path}", "}")
        paths.setdefault(path, {})[each.method.lower()] = operation_object(each, schema_of, needs_key=needs_key)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Sporelm", "version": __version__, "description": "Language models over HTTP."},
        "paths": paths,
        "components": {"schemas": components},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def operation_object(endpoint: Endpoint, schema_of: dict[Any, Any], *, needs_key: bool) -> dict[str, Any]:
    """Return the description of one endpoint."""
    text = cleandoc(endpoint.handler.__doc__ or "")
    if endpoint.alias_of is not None:
        text = f"The same as {endpoint.alias_of}.\n\n{text}"
    content: dict[str, Any] = {}
    if endpoint.reply is not None:
        content["application/json"] = {"schema": schema_of[endpoint.reply]}
    if endpoint.stream_media_type is not None:
        content[endpoint.stream_media_type] = {"schema": {}}
    if not content:
        content["*/*"] = {"schema": {}}
    error = {"application/json": {"schema": schema_of[ERROR_TYPES[endpoint.error_format]]}}
    if endpoint.path in (*KEYLESS_PATHS, "/ready"):
        error = content
    operation: dict[str, Any] = {
        "tags": [endpoint.tag],
        "summary": text.split("\n")[0],
        "description": text,
        "operationId": f"{endpoint.method.lower()}{endpoint.path.replace('/', '_').replace(':path', '')}",
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "An error.", "content": error},
        },
    }
    names = [part[1:-1].removesuffix(":path") for part in endpoint.path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if endpoint.body is not None:
        body = {"application/json": {"schema": schema_of[endpoint.body]}}
        operation["requestBody"] = {"required": True, "content": body}
    if needs_key and endpoint.path not in KEYLESS_PATHS:
        operation["security"] = [{"key": []}]
    return operation


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sporelm: the API</title>
<meta name="viewport" content="width=device-width">
<style>
:root{{color-scheme:light dark}}
body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
code,pre{{font:13px/1.45 ui-monospace,monospace}} pre{{overflow:auto;padding:.6rem;background:#8881;border-radius:6px}}
summary{{cursor:pointer;padding:.35rem 0}} .method{{display:inline-block;width:4.5rem;font-weight:600}}
</style></head><body><h1>Sporelm: the API</h1>
<p>The machine-readable description is at <a href="openapi.json">/openapi.json</a>.</p>{sections}</body></html>
"""


@cache
def docs_page(document_json: str) -> str:
    """Return the description, given as JSON, as a self-contained page."""
    document = json.loads(document_json)
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            reply = operation["responses"]["200"]["content"].get("application/json", {}).get("schema")
            parts = [f"<p>{html.escape(operation['description'])}</p>"]
            for title, schema in (("Body", body), ("Answer", reply)):
                if schema is not None:
                    resolved = json.dumps(resolve_schema(schema, document["components"]["schemas"]), indent=1)
                    parts.append(f"<p>{title}</p><pre>{html.escape(resolved)}</pre>")
            head = (
                f'<span class="method">{method.upper()}</span><code>{html.escape(path)}</code> '
                f"{html.escape(operation['summary'])}"
            )
            by_tag.setdefault(operation["tags"][0], []).append(
                f"<details><summary>{head}</summary>{''.join(parts)}</details>"
            )
    sections = [f"<h2>{html.escape(tag)}</h2>{''.join(entries)}" for tag, entries in by_tag.items()]
    return PAGE.format(sections="".join(sections))


def resolve_schema(schema: Any, components: dict[str, Any]) -> Any:
    """Return the component that a schema refers to, or the schema itself."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    return components[reference.rpartition("/")[2]] if reference else schema
