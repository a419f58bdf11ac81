"""JSON bodies: requests decoded and checked by their types, and responses."""

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sporelm.serve.http.api_errors import ApiError, error_format_for, ollama_error_body
from sporelm.text.unicode_check import find_invalid_character

MAX_SEARCHED_BYTES = 1 << 20  # of a body that is searched for text that is not valid Unicode
NO_GC_BYTES = 1 << 16  # of a body, from which on it is decoded without garbage collection
T = TypeVar("T")


class RequestBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=False):
    """A request's JSON. An unknown field is refused: a server that ignored it would answer another request."""


_encoder = msgspec.json.Encoder()


def encode_json(value: Any) -> bytes:
    return _encoder.encode(value)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    return Response(encode_json(value), status, headers, "application/json")


def decode_body(data: bytes, body_type: type[T], request: Request) -> T:
    """Decode a request's body. Raises ApiError: 400 that names the field, or 415 for another media type."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json and not _is_curl_form(media_type, request):
        raise ApiError(415, f"the body is {media_type[:60]!r}: send application/json", code="not_json")
    pauses_gc = len(data) > NO_GC_BYTES and gc.isenabled()
    try:
        if pauses_gc:  # or a million small lists are scanned for cycles again and again, for a second
            gc.disable()
        return msgspec.json.decode(data or b"{}", type=body_type)
    except msgspec.ValidationError as reason:
        message = f"request body is not valid: {reason}"
        raise ApiError(400, message, code="invalid_body", param=_field_path(reason)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        message = f"request body is not valid JSON: {find_invalid_text(data) or reason}"
        raise ApiError(400, message, code="invalid_json") from None
    finally:
        if pauses_gc:
            gc.enable()


def _is_curl_form(media_type: str, request: Request) -> bool:
    """Return whether a body that claims to be a form is JSON: Ollama's documentation has `curl -d` without a type.

    A form that a page of another site sends, which browsers allow, has one of two headers that only they set.
    """
    is_form = media_type == "application/x-www-form-urlencoded"
    is_ollama = error_format_for(request.url.path) is ollama_error_body
    return is_form and is_ollama and "origin" not in request.headers and "sec-fetch-site" not in request.headers


def find_invalid_text(data: bytes) -> str:
    """Describe the first text of a body that is not valid Unicode: by its field and position, or by its byte where the
    body cannot be searched. Return "" if all text is valid."""
    text = data.decode("utf-8", "surrogateescape")
    with suppress(ValueError, RecursionError):
        if len(data) <= MAX_SEARCHED_BYTES:
            for path, each in _strings_in(json.loads(text)):
                if (problem := find_invalid_character(each)) is not None:
                    return f"{path or 'it'} holds {problem}"
    at = next((at for at, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
    if at is None:
        return ""
    start = len(text[:at].encode())
    return f"byte {start} is {data[start]:#04x}, which is not UTF-8"


def _strings_in(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield all strings of a JSON value with their paths, as in messages[0].content."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from _strings_in(each, f"{path}[{at}]")
    elif isinstance(value, dict):
        for name, each in value.items():
            yield path or "a name", name
            yield from _strings_in(each, f"{path}.{name}".removeprefix("."))


def _field_path(reason: msgspec.ValidationError) -> str | None:
    """Return the field at fault of "... - at `$.messages[0].role`"."""
    _, mark, path = str(reason).rpartition(" - at `$.")
    return path.rstrip("`") if mark else None
