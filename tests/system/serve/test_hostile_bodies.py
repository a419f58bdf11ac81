"""Bodies that attackers send: numbers out of range, hostile texts and names, lists and trees of any size, grammars."""

import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from sporelm.serve.app import ENDPOINTS
from sporelm.serve.http.api_keys import ApiKey
from system.serve.running_server import Running
from system.serve.slow_models import wait_until

Serve = Callable[..., Running]
SAID = [{"role": "user", "content": "Lily"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Lily", "max_tokens": 1},
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 1},
    "/v1/responses": {"input": "Lily", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "Lily"},
    "/v1/rerank": {"query": "Lily", "documents": ["a"]},
    "/v1/messages": {"model": "story", "messages": SAID, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "story", "messages": SAID},
    "/api/chat": {"messages": SAID, "stream": False, "options": {"num_predict": 1}},
    "/api/generate": {"prompt": "Lily", "stream": False, "options": {"num_predict": 1}},
    "/api/embed": {"input": "Lily"},
    "/api/embeddings": {"prompt": "Lily"},
    "/api/show": {"model": "story"},
    "/api/pull": {"model": "story", "stream": False},
    "/tokenize": {"prompt": "Lily"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": SAID},
    "/api/ui/tokens": {"messages": SAID},
    "/infer": {"messages": SAID, "encoding": "text", "max_tokens": 1},
    "/cancel": {"session_id": "a"},
    "/fork": {"session_id": "a", "new_session_id": "b"},
    "/drop": {"session_id": "a"},
}
ASKED = {endpoint.path: endpoint for endpoint in ENDPOINTS if endpoint.path in BODIES}
OPTIONS = ("num_predict", "num_ctx", "num_keep", "seed", "temperature", "top_k", "top_p", "min_p", "repeat_penalty")
NOT_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "1_0", "+1", "01")
FAR = (-1, 1 << 63, 1e308, -(1 << 63) - 1, 1 << 31, 10**30, -1e308, 1e-320, 2.5, "1", True, [1], {})
HOSTILE = ("\0", "../../../etc/passwd", "a" * 100_000, "\x1b[31m\r\nx: y", "%00%2e%2e/", "{{ 7*7 }}")


def said_by_user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def post(client: httpx.Client, path: str, body: object) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=data, headers={"content-type": "application/json"})


def fields(kind: Any, *types: type) -> list[str]:
    """The fields of a body that may be of one of msgspec's types."""
    found = []
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        inner = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        if any(isinstance(each, types) for each in inner):
            found.append(field.encode_name)
    return found


@pytest.fixture
def some(request: pytest.FixtureRequest) -> slice:
    """How much of a list is tried: with --all all of it."""
    return slice(None) if request.config.getoption("--all") else slice(3)


@pytest.fixture(autouse=True)
def unharmed(served: Running) -> Iterator[None]:
    """The server is unharmed after each test."""
    yield
    assert served.client().get("/health").status_code == 200
    wait_until(served.engine_idle)


def test_every_route_with_a_body_is_attacked() -> None:
    handlers = {endpoint.handler for endpoint in ENDPOINTS if endpoint.body is not None}
    assert {endpoint.handler for endpoint in ASKED.values()} == handlers


# ---- numbers


@pytest.mark.parametrize("path", BODIES)
def test_numbers_far_from_sense_are_refused_or_harmless(served: Running, path: str, some: slice) -> None:
    client = served.client()
    kind = ASKED[path].body
    changes = [
        {name: value}
        for name in fields(kind, msgspec.inspect.IntType, msgspec.inspect.FloatType)
        for value in FAR[some]
        if name not in ("created",)
    ]
    if path.startswith("/api/") and "options" in BODIES[path]:
        changes += [{"options": {"num_predict": 1, name: value}} for name in OPTIONS for value in FAR[some]]
    for change in changes:
        answer = post(client, path, BODIES[path] | change)
        assert answer.status_code < 500, (change, answer.text)
        assert answer.status_code == 200 or "error" in answer.text or '"code"' in answer.text


@pytest.mark.parametrize("path", BODIES)
def test_numbers_that_json_does_not_know_are_refused(served: Running, path: str, some: slice) -> None:
    client = served.client()
    names = fields(ASKED[path].body, msgspec.inspect.IntType, msgspec.inspect.FloatType)[:2]
    for name in names:
        for value in NOT_NUMBERS[some]:
            body = json.dumps(BODIES[path] | {name: "HERE"}).replace('"HERE"', value).encode()
            answer = post(client, path, body)
            assert answer.status_code == 400, (name, value, answer.text)


@pytest.mark.parametrize("value", [-(1 << 40), 1e308, "NaN", "Infinity"])
def test_biases_out_of_range_are_refused(served: Running, value: object) -> None:
    body = json.dumps(BODIES["/v1/completions"] | {"logit_bias": {"1": "HERE"}}).replace('"HERE"', str(value))
    assert post(served.client(), "/v1/completions", body.encode()).status_code == 400


# ---- texts


@pytest.mark.parametrize("path", BODIES)
def test_hostile_texts_are_refused_or_harmless(served: Running, path: str, some: slice) -> None:
    client = served.client()
    for name in fields(ASKED[path].body, msgspec.inspect.StrType):
        for value in HOSTILE[some]:
            answer = post(client, path, BODIES[path] | {name: value})
            assert answer.status_code < 500, (name, value[:20], answer.text)
            assert "root:" not in answer.text
        for half in (rb"\ud800", rb"\udfff", rb"\ud800\u0041"):
            body = json.dumps(BODIES[path] | {name: "HERE"}).encode().replace(b"HERE", half)
            answer = post(client, path, body)
            assert answer.status_code == 400, (name, half, answer.text)
        for bad in (b"\xff", b"\xc3\x28", b"\xed\xa0\x80"):
            body = json.dumps(BODIES[path] | {name: "HERE"}).encode().replace(b"HERE", bad)
            assert post(client, path, body).status_code == 400, (name, bad)


@pytest.mark.parametrize(
    "name", ["..", "../x", "story/../story", "/etc/passwd", "a\0b", "C:\\x", "story ", "hf:owner/name", "story.gguf"]
)
def test_a_model_is_a_name_and_no_place(served: Running, name: str) -> None:
    client = served.client()
    for path, endpoint in ASKED.items():
        if "model" in fields(endpoint.body, msgspec.inspect.StrType):
            answer = post(client, path, BODIES[path] | {"model": name})
            assert answer.status_code in (400, 404), (path, answer.text)
    escaped = "".join(f"%{byte:02x}" for byte in name.encode())
    assert client.get(f"/v1/models/{escaped}").status_code in (400, 404)


@pytest.mark.parametrize("name", ["", "a/b", "..\\x", "../x", "a\0", "a\n", "é", "a" * 129, " ", "a b", "%2e%2e"])
def test_a_session_is_a_name_and_no_place(served: Running, name: str) -> None:
    client = served.client()
    for path in ("/infer", "/cancel", "/fork", "/drop"):
        answer = post(client, path, BODIES[path] | {"session_id": name})
        assert answer.status_code == 400, (path, answer.text)
        assert "session id" in answer.json()["message"]
    assert post(client, "/fork", {"session_id": "a", "new_session_id": name}).status_code == 400


def test_names_that_look_like_places_stay_in_the_folder(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "deep"
    client = serve(session_dir=folder, max_sessions=1).client()
    for name in (".", "..", "...", "a:b", "CON", "-rf"):
        assert post(client, "/infer", BODIES["/infer"] | {"session_id": name}).status_code == 200
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parent for path in files} == {folder / "sessions"}
    assert all(re.fullmatch("[0-9a-f]{16}-[0-9a-f]{64}", path.stem) for path in files)
    for name in ("..%2f..%2fx", "%2e%2e", "a" * 32 + "%00", "A" * 32, "0" * 31):
        for method in ("GET", "PATCH", "DELETE"):
            sent = {"json": {"version": 1}} if method == "PATCH" else {}
            assert client.request(method, f"/api/ui/conversations/{name}", **sent).status_code in (400, 404, 405)


# ---- sizes


LARGE: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"logit_bias": lambda n: {str(number): 1 for number in range(n)}}, "logit_bias has"),
    ("/v1/completions", {"stop": lambda n: ["x"] * n}, "stop has"),
    ("/v1/completions", {"stop": lambda n: ["x" * n]}, "stop has a string of"),
    ("/v1/completions", {"prompt": lambda n: [1] * n}, "the context holds"),
    ("/v1/completions", {"prompt": lambda n: ["a"] * n}, "max_prompts"),
    ("/v1/completions", {"prompt": lambda n: "a " * n}, "context"),
    ("/v1/embeddings", {"input": lambda n: [[1]] * n}, "max_prompts"),
    ("/v1/embeddings", {"input": lambda n: [1] * n}, "the context holds"),
    ("/v1/chat/completions", {"messages": lambda n: SAID * n}, "max_messages"),
    ("/v1/chat/completions", {"tools": lambda n: [{"type": "function", "function": {"name": "f"}}] * n}, "tools has"),
    ("/v1/messages", {"stop_sequences": lambda n: ["x"] * n}, "has"),
    ("/api/chat", {"options": lambda n: {"stop": ["x"] * n}}, "stop has"),
    ("/infer", {"messages": lambda n: SAID * n}, "max_messages"),
]


@pytest.mark.parametrize("count", [20_000, pytest.param(300_000, marks=pytest.mark.all)])
@pytest.mark.parametrize(("path", "change", "told"), LARGE, ids=lambda each: each if isinstance(each, str) else None)
def test_lists_without_end_are_refused_by_name(
    served: Running, path: str, change: dict[str, Any], told: str, count: int
) -> None:
    answer = post(served.client(), path, BODIES[path] | {name: make(count) for name, make in change.items()})
    assert answer.status_code == 400, answer.text[:300]
    assert told in answer.text


def test_a_text_that_no_context_holds_is_refused_before_it_is_read(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = served.server.models.loaded["story"].llm.tokenizer
    read: list[int] = []
    encode = type(tokenizer).encode
    monkeypatch.setattr(
        type(tokenizer), "encode", lambda self, text, **more: read.append(len(text)) or encode(self, text, **more)
    )
    text = "a " * 1_000_000
    said = said_by_user(text)
    for path, change in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/embeddings", {"input": text}),
        ("/v1/chat/completions", said),
        ("/v1/responses", {"input": text}),
        ("/v1/messages", said),
        ("/api/generate", {"prompt": text}),
        ("/tokenize", {"prompt": text}),
        ("/infer", said | {"session_id": "large"}),
    ):
        answer = post(served.client(), path, BODIES[path] | change)
        assert answer.status_code == 400, answer.text[:200]
        assert "fit in a context" in answer.text
    assert max(read, default=0) < 1000


def nested(depth: int, open_: str, close: str) -> str:
    return open_ * depth + "1" + close * depth


@pytest.mark.parametrize("depth", [300, 100_000])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/completions", "response_format"), ("/v1/completions", "prompt"), ("/v1/chat/completions", "tools"),
        ("/v1/chat/completions", "messages"), ("/v1/chat/completions", "chat_template_kwargs"),
        ("/v1/chat/completions", "metadata"), ("/v1/messages", "tools"), ("/v1/messages", "messages"),
        ("/v1/responses", "input"), ("/api/chat", "format"), ("/api/chat", "options"), ("/apply-template", "messages"),
    ],
)  # fmt: skip
def test_deep_trees_are_refused_or_harmless(served: Running, path: str, name: str, depth: int) -> None:
    for open_, close in (("[", "]"), ('{"a":', "}")):
        body = json.dumps(BODIES[path] | {name: "HERE"}).replace('"HERE"', nested(depth, open_, close))
        answer = post(served.client(), path, body.encode())
        assert answer.status_code < 500, answer.text[:300]
        assert depth < 1000 or answer.status_code == 400


def test_deep_trees_within_what_may_be_deep(served: Running) -> None:
    schema = nested(300, '{"type":"array","items":', "}").replace("1", "{}")
    for path, change in (
        ("/v1/chat/completions", '"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":%s}}'),
        ("/v1/chat/completions", '"tools":[{"type":"function","function":{"name":"f","parameters":%s}}]'),
        ("/v1/messages", '"tools":[{"name":"f","input_schema":%s}]'),
        ("/v1/responses", '"text":{"format":{"type":"json_schema","name":"x","schema":%s}}'),
        ("/api/chat", '"format":%s'),
    ):
        body = json.dumps(BODIES[path])[:-1] + "," + change % schema + "}"
        answer = post(served.client(), path, body.encode())
        assert answer.status_code in (200, 400), answer.text[:300]


# ---- grammars


REGEXES = [
    "(a+)+$", "(a|a)*b", "(.*a){25}", "((a{1,300}){1,300}){1,300}", "[a-z]{1,100000}", "(?:a?){2000}a{2000}",
    "((((((((a*)*)*)*)*)*)*)*)*", "(?=a)b", r"(a)\1", "(" * 3000, "(?P<a>x)(?P=a)", "a{999999999999}", "[", "(?i)ſK",
]  # fmt: skip


@pytest.mark.parametrize(
    "regex",
    [
        pytest.param(regex, id=regex[:24], marks=[pytest.mark.all] if place > 6 else [])
        for place, regex in enumerate(REGEXES)
    ],
)
def test_expressions_cost_no_more_than_they_say(served: Running, regex: str) -> None:
    client = served.client()
    forms = [{"type": "regex", "regex": regex}]
    schema = {"type": "string", "pattern": regex}
    forms.append({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    for form in forms:
        ask = BODIES["/v1/completions"] | {"max_tokens": 6, "response_format": form}
        answer = post(client, "/v1/completions", ask)
        assert answer.status_code in (200, 400), answer.text
    assert post(client, "/api/generate", BODIES["/api/generate"] | {"format": schema}).status_code in (200, 400)


def doubled(kind: str) -> dict[str, Any]:
    """A schema of forty lines that stands for 2^40 ones."""
    steps = {f"d{n}": {kind: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    return {"$defs": steps | {"d40": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "schema",
    [
        doubled("allOf"), doubled("anyOf"), doubled("oneOf"), {"$ref": "#"}, {"allOf": [{"$ref": "#"}]},
        {"$ref": "http://127.0.0.1:9/x"}, {"$ref": "file:///etc/passwd"}, {"enum": [f"v {n}" for n in range(50_000)]},
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}},
        {"type": "string", "minLength": 10**9}, {"type": "array", "minItems": 10**9, "items": {"type": "null"}},
        {"type": "integer", "multipleOf": 1e-300}, {"type": "number", "minimum": 1e308, "maximum": -1e308},
        {"type": "string", "format": "nothing"}, {"type": ["string"] * 5000}, {"const": "x" * 200_000},
    ],
    ids=lambda each: json.dumps(each)[:30],
)  # fmt: skip
def test_schemas_cost_no_more_than_they_say(served: Running, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    client = served.client()
    answer = post(client, "/v1/completions", BODIES["/v1/completions"] | {"max_tokens": 6, "response_format": form})
    assert answer.status_code in (200, 400), answer.text
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    ask = BODIES["/v1/chat/completions"] | {"max_tokens": 6, "tools": tools, "tool_choice": "required"}
    answer = post(client, "/v1/chat/completions", ask)
    assert answer.status_code in (200, 400), answer.text


# ---- requests that a server could be made to send


@pytest.fixture
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """A port that must get no requests, and the requests that it got."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        ended = threading.Event()

        def hear() -> None:
            while not ended.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                heard.append(b"a client")
                connection.close()

        thread = threading.Thread(target=hear)
        thread.start()
        yield server.getsockname()[1], heard
        ended.set()
        thread.join(60)


def test_nothing_in_a_body_makes_the_server_ask_elsewhere(served: Running, listening: tuple[int, list[bytes]]) -> None:
    port, heard = listening
    client = served.client()
    for url in (
        f"http://127.0.0.1:{port}/x.png",
        f"http://localhost:{port}/",
        f"//127.0.0.1:{port}",
        "file:///etc/passwd",
    ):
        image = {"type": "image_url", "image_url": {"url": url}}
        source = {"type": "image", "source": {"type": "url", "url": url}}
        document = {"type": "document", "source": {"type": "url", "url": url}}
        for path, change in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]}),
            ("/v1/messages", {"messages": [{"role": "user", "content": [source]}]}),
            ("/v1/messages", {"messages": [{"role": "user", "content": [document]}]}),
            ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}),
            ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": url}]}]}),
            ("/v1/responses", {"tools": [{"type": "mcp", "server_label": "x", "server_url": url}]}),
            ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": [url]}]}),
            ("/api/generate", {"images": [url]}),
            ("/api/pull", {"model": url}),
            ("/api/show", {"model": url}),
            ("/v1/completions", {"model": url}),
            ("/v1/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": url}}}}),
        ):
            answer = post(client, path, BODIES[path] | change)
            assert 400 <= answer.status_code < 500, (path, change, answer.text)
            assert "root:" not in answer.text
    assert not heard


# ---- what is one's own


def test_no_api_finds_what_another_key_computed(serve: Serve) -> None:
    running = serve(keys=(ApiKey.parse("anna:a"), ApiKey.parse("ben:b")))
    text = "and Tom went to the park to play with the ball and the dog. " * 8

    def cached(key: str, path: str, change: dict[str, Any], *names: str) -> int:
        found = post(running.client(key), path, BODIES[path] | change).json()
        for name in names:
            found = found[name]
        return int(found)

    for path, change, names in (
        ("/v1/completions", {"prompt": "1" + text}, ("usage", "prompt_tokens_details", "cached_tokens")),
        ("/v1/chat/completions", said_by_user("2" + text), ("usage", "prompt_tokens_details", "cached_tokens")),
        ("/v1/responses", {"input": "3" + text}, ("usage", "input_tokens_details", "cached_tokens")),
        ("/v1/messages", said_by_user("4" + text), ("usage", "cache_read_input_tokens")),
    ):
        own = {} if path == "/v1/messages" else {"user": "anna"}  # who one says that one is changes nothing
        cached("a", path, change, *names)
        assert cached("a", path, change | own, *names) > 60
        assert cached("b", path, change | own, *names) == 0


def test_keys_are_compared_in_a_time_that_tells_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    from sporelm.serve.http import api_keys

    running = serve(keys=tuple(ApiKey.parse(f"{name}:{name}-secret") for name in ("a", "b", "c")))
    compared: list[tuple[bytes, bytes]] = []
    compare = api_keys.hmac.compare_digest
    monkeypatch.setattr(api_keys.hmac, "compare_digest", lambda *two: compared.append(two) or compare(*two))
    for secret in ("a-secret", "c-secret", "a-secre", "x", "a" * 5000):
        compared.clear()
        running.client(secret).get("/v1/models")
        assert len(compared) == 3, "each key is compared each time, wherever the right one is"
        assert all(len(own) == len(given) == 32 for own, given in compared), "hashes, whose lengths tell nothing"


def test_no_word_of_what_was_asked_or_answered_is_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    running = serve(keys=(ApiKey.parse("anna:a-secret"),))
    client = running.client("a-secret")
    with caplog.at_level(logging.DEBUG, logger="sporelm"):
        for path, change in (
            ("/v1/completions", {"prompt": "unheard"}),
            ("/v1/completions", {"prompt": "unheard", "nonsense": 1}),
            ("/v1/completions", {"prompt": "unheard " * 600}),
            ("/v1/chat/completions", {"messages": [{"role": "unheard", "content": "unheard"}]}),
            ("/infer", {"messages": [{"role": "user", "content": "unheard"}], "session_id": "a"}),
        ):
            post(client, path, BODIES[path] | change)
        client.get("/v1/models?q=unheard", headers={"cookie": "unheard", "user-agent": "unheard"})
        wait_until(lambda: caplog.text.count("/v1/models") > 0)
    assert "POST /v1/completions" in caplog.text
    assert "unheard" not in caplog.text
    assert "secret" not in caplog.text


def test_a_byte_that_is_not_utf8_is_told_by_its_place(served: Running) -> None:
    body = b'{"prompt": "Lily", "model": "st\xffory"}'
    said = post(served.client(), "/v1/completions", body).json()["error"]["message"]
    assert said == "request body is not valid JSON: model holds the byte 0xFF at position 2, which is not UTF-8"


def test_what_curl_sends_to_ollamas_paths_is_json_and_what_a_form_of_a_page_sends_is_refused(served: Running) -> None:
    client = served.client()

    def ask(path: str, **headers: str) -> int:
        body = json.dumps(BODIES[path]).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post(
            path, content=body, headers={"content-type": "application/x-www-form-urlencoded"} | named
        ).status_code

    assert [ask(path) for path in ("/api/generate", "/api/show", "/api/chat")] == [200] * 3
    assert ask("/v1/completions") == 415
    for site in ("cross-site", "same-origin", "none"):
        assert ask("/api/generate", sec_fetch_site=site) == 415
    assert ask("/api/generate", origin=served.url) == 415
    assert ask("/api/generate", origin="http://evil.example") == 403
    assert ask("/api/generate", origin="null") == 403
