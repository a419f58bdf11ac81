"""Attacks known from other servers, each with the rule that stops it."""

import base64
import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from sporelm.engine import Request
from sporelm.serve.app import ENDPOINTS
from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from system.serve.running_server import Running
from system.serve.slow_models import LONG, wait_until

Serve = Callable[..., Running]
KEYS = (ApiKey.parse("anna:key-of-anna"), ApiKey.parse("ben:key-of-ben"))


@pytest.fixture(scope="module")
def closed(served_with: Callable[..., Running]) -> Running:
    """A server with keys."""
    return served_with(keys=KEYS)


@pytest.fixture(scope="module")
def served_with(chatty: object) -> Iterator[Callable[..., Running]]:
    from system.serve.running_server import run_server, server_options

    stops = []

    def start(**more: object) -> Running:
        running, stop = run_server(ServeConfig(**server_options(models=(ModelSpec("story", str(chatty)),), **more)))
        stops.append(stop)
        return running

    yield start
    for stop in stops:
        stop()


def raw(port: int, data: bytes, seconds: float = 60) -> bytes:
    """Return the server's reply to some bytes, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(data)
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
        except OSError:
            pass
        return found


# ---- keys: every route, in constant time, each one's things apart


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_every_route_but_health_needs_a_key(closed: Running, endpoint: object) -> None:
    path = endpoint.path.replace("{model:path}", "story")  # type: ignore[attr-defined]
    method = endpoint.method  # type: ignore[attr-defined]
    answer = closed.client().request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == (200 if path in ("/health", "/v1/health") else 401)
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "key-of" not in answer.text


CLOSED = (
    "/nowhere", "/static/../health", "//health", "/health/", "/v1/models/%2e%2e/x", "//", "/webui", "/webui/",
    "/webui/nothing.js", "/webui/__init__.py", "/webui/../docs", "/webui/%2e%2e/docs", "/webui//theme.js",
    "/webui/js/../../docs", "/api/ui/conversations", "/metrics", "/docs", "/openapi.json",
)  # fmt: skip


@pytest.mark.parametrize("path", CLOSED)
def test_unknown_paths_need_a_key_too(closed: Running, path: str) -> None:
    said = raw(closed.port, b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path.encode())
    assert said.startswith(b"HTTP/1.1 401"), said[:100]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer key-of-ann"},
        {"authorization": "Bearer key-of-annaa"},
        {"authorization": "Bearer anna:key-of-anna"},
        {"authorization": "key-of-anna"},
        {"authorization": "Bearer"},
        {"authorization": "Basic " + base64.b64encode(b"anna:nothing").decode()},
        {"authorization": "Basic %%%"},
        {"x-api-key": "nothing"},
        {"cookie": "key=key-of-anna"},
    ],
    ids=str,
)
def test_an_invalid_key_opens_nothing(closed: Running, headers: dict[str, str]) -> None:
    assert closed.client().get("/v1/models", headers=headers).status_code == 401


def test_a_key_is_not_taken_from_the_address(closed: Running) -> None:
    assert closed.client().get("/v1/models?api_key=key-of-anna&key=key-of-anna").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer key-of-anna"},
        {"authorization": "bearer key-of-ben"},
        {"x-api-key": "key-of-anna"},
        {"authorization": "Basic " + base64.b64encode(b"any:key-of-ben").decode()},
    ],
    ids=str,
)
def test_keys_open(closed: Running, headers: dict[str, str]) -> None:
    assert closed.client().get("/v1/models", headers=headers).status_code == 200


def test_the_page_of_the_web_chat_opens_without_a_key_to_be_read(closed: Running) -> None:
    client = closed.client()
    page = client.get("/", headers={"accept": "text/html,*/*"})
    assert page.status_code == 200
    files = re.findall(r'(?:src|href)="(/?webui/[^"]+)"', page.text)
    assert files
    for path in ("/", *(f"/{each.lstrip('/')}" for each in files)):
        assert client.get(path).status_code == client.head(path).status_code == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert client.request(method, path).status_code == 401
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403


def test_a_browser_is_asked_for_the_key_where_a_page_needs_one(closed: Running) -> None:
    answer = closed.client().get("/docs", headers={"accept": "text/html,*/*"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic realm=")


def test_what_one_key_computed_is_not_found_by_another(closed: Running) -> None:
    text = "Lily and Tom went to the park to play with the ball and the dog. " * 8

    def cached(key: str) -> tuple[int, str | None]:
        made = closed.client(key).post("/v1/completions", json={"prompt": text, "max_tokens": 1}).json()
        details = made["usage"]["prompt_tokens_details"]
        return details["cached_tokens"], details["cache_miss"]

    cached("key-of-anna")
    assert cached("key-of-anna")[0] > 60
    assert cached("key-of-ben") == (0, "first request with this key")


# ---- Host and Origin: pages of other sites (DNS rebinding, CSRF)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::2]"])
def test_a_foreign_host_is_refused_on_loopback(served: Running, host: str) -> None:
    said = raw(served.port, b"GET /v1/models HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % host.encode())
    assert said.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), said[:60]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:1", "LOCALHOST:99"])
def test_our_own_names_are_taken(served: Running, host: str) -> None:
    assert served.client().get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "file://", "http://[", ""])
def test_a_foreign_page_is_refused(served: Running, origin: str) -> None:
    host = f"localhost:{served.port}"
    answer = served.client().post("/v1/completions", json={"prompt": "Lily"}, headers={"host": host, "origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_our_own_page_is_taken(served: Running) -> None:
    host = f"localhost:{served.port}"
    headers = {"host": host, "origin": f"http://{host}"}
    assert served.client().get("/v1/models", headers=headers).status_code == 200


def test_no_page_is_invited_unless_it_is_named(served: Running, served_with: Callable[..., Running]) -> None:
    asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization, x-stainless-lang"  # as OpenAI's client in a browser
    refused = served.client().options("/v1/models", headers=asks)
    assert refused.status_code == 403
    assert not [name for name in refused.headers if name.startswith("access-control")]
    named = served_with(cors_origins=("https://app.example",)).client()
    invited = named.options("/v1/models", headers=asks)
    assert invited.status_code == 200
    assert invited.headers["access-control-allow-origin"] == "https://app.example"
    assert "x-stainless-lang" in invited.headers["access-control-allow-headers"]
    assert named.get("/v1/models", headers={"origin": "https://app.example"}).status_code == 200
    other = named.get("/v1/models", headers={"origin": "https://other.example"})
    assert other.status_code == 403


def test_a_form_of_another_page_cannot_ask(served: Running) -> None:
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = served.client().post("/v1/completions", content=b'{"prompt": "Lily"}', headers={"content-type": media})
        assert answer.status_code == 415


# ---- sizes, times and numbers


def test_a_body_that_is_too_large_is_refused_before_it_is_read(served: Running) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    said = raw(served.port, head + b"content-length: 99999999999\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 413"), said[:60]
    assert b"max_body" in said


def test_a_body_without_an_end_is_cut(served_with: Callable[..., Running]) -> None:
    running = served_with(max_body=4096)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    said = raw(
        running.port,
        head
        + b"transfer-encoding: chunked\r\n\r\n"
        + b"400\r\n"
        + b" " * 1024
        + b"\r\n" * 1
        + (b"400\r\n" + b" " * 1024 + b"\r\n") * 8,
    )
    assert said.startswith(b"HTTP/1.1 413"), said[:60]


def test_bodies_that_are_too_large_together_are_refused_until_others_have_gone(
    served_with: Callable[..., Running],
) -> None:
    running = served_with(max_body=4096, max_bodies=5000)
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    )
    body = b'{"prompt": "Lily", "max_tokens": 1}'.ljust(3000)
    head += b"content-length: 3000\r\n\r\n"

    def send() -> bytes:
        return raw(running.port, head + body)

    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as slow:
        slow.sendall(head + body[:-1])
        while (said := send()).startswith(b"HTTP/1.1 200"):
            pass  # the other's body is on its way still
        assert said.startswith(b"HTTP/1.1 503"), said[:60]
        assert b"max_bodies" in said
        assert b"retry-after: " in said
        assert b"connection: close" in said
        assert running.client().get("/v1/models").status_code == 200
        slow.sendall(body[-1:])
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        while not (said := send()).startswith(b"HTTP/1.1 200"):
            assert said.startswith(b"HTTP/1.1 503"), said[:60]  # it is given back when the request has ended
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as left:
        left.sendall(head + body[:-1])
        while send().startswith(b"HTTP/1.1 200"):
            pass
    while not (said := send()).startswith(b"HTTP/1.1 200"):
        assert said.startswith(b"HTTP/1.1 503"), said[:60]


def test_a_body_that_comes_too_slowly_is_not_waited_for(served_with: Callable[..., Running]) -> None:
    running = served_with(body_seconds=0.3)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    said = raw(running.port, head + b"content-length: 20\r\n\r\n{")
    assert said.startswith(b"HTTP/1.1 408"), said[:60]


def test_heads_that_are_too_slow_too_long_or_too_many_are_cut(served_with: Callable[..., Running]) -> None:
    hasty, began = served_with(head_seconds=0.3), time.monotonic()
    assert raw(hasty.port, b"GET /health HTTP/1.1\r\nhost: loc") == b""
    assert raw(hasty.port, b"") == b""
    assert time.monotonic() - began < 2 * ServeConfig().head_seconds, "sooner than others do it"
    running = served_with(max_headers=2048)
    said = raw(running.port, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 3000 + b"\r\n\r\n")
    assert said.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), said[:60]
    many = b"".join(b"x%d: 1\r\n" % number for number in range(150))
    said = raw(running.port, b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + many + b"\r\n")
    assert said.startswith(b"HTTP/1.1 431"), said[:60]
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:  # a head without an end
        try:
            for _ in range(64):
                connection.sendall(b"GET /" + b"a" * 1024)
            assert connection.recv(100)[:12] in (b"", b"HTTP/1.1 400")
        except OSError:
            pass
    assert running.client().get("/health").status_code == 200


HUGE = "9" * 400
NUMBERS = [
    {"max_tokens": -1}, {"max_tokens": 0}, {"max_tokens": 1 << 40}, {"n": 0}, {"n": 1 << 31}, {"n": 129},
    {"temperature": -1}, {"top_p": 0}, {"top_p": 2}, {"top_k": -2}, {"min_p": -1}, {"logprobs": 1000},
    {"logit_bias": {"-1": 0}}, {"logit_bias": {"99999999": 1}}, {"logit_bias": {"1": 1000}}, {"logit_bias": {"x": 1}},
    {"prompt": [-1]}, {"prompt": [1 << 40]}, {"prompt": [[]]}, {"prompt": []}, {"prompt": [1.5]}, {"prompt": [1, "a"]},
    {"stop": [""]}, {"stop": ["a"] * 100}, {"stop_token_ids": [-5]}, {"seed": 1 << 80}, {"best_of": 0},
    {"min_tokens": 1 << 40}, {"dry_base": 0}, {"repetition_penalty": 0}, {"mirostat": 3}, {"prompt": "\ud800"},
    {"n": 2.5}, {"adapter": "../../etc/passwd"}, {"model": "../../etc/passwd"}, {"model": "story/../story"},
]  # fmt: skip


@pytest.mark.parametrize("change", NUMBERS, ids=lambda each: json.dumps(each)[:40])
def test_numbers_out_of_range_never_reach_the_engine(served: Running, change: dict[str, object]) -> None:
    body = json.dumps({"prompt": "Lily", "max_tokens": 2} | change).encode()
    answer = served.client().post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": 1e999}',
        b'{"prompt": "a", "max_tokens": ' + HUGE.encode() + b"}",
        b'{"prompt":' + b"[" * 100_000, b'{"prompt": "a", "logit_bias":' + b'{"a":' * 50_000,
        b'{"prompt": "a", "unknown_field": 1}', b'{"prompt": NaN}', b'{"prompt": "a"} trailing',
    ],
    ids=lambda each: repr(each[:30]),
)  # fmt: skip
def test_malformed_bodies_are_a_400(served: Running, body: bytes) -> None:
    answer = served.client().post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] in ("invalid_json", "invalid_body")


def test_chats_and_answers_that_are_too_long_are_refused_by_name(served_with: Callable[..., Running]) -> None:
    client = served_with(max_messages=3, max_tokens=5).client()
    messages = [{"role": "user", "content": "Lily"}]
    asked = {"model": "story", "messages": messages, "max_tokens": 6}
    for path in ("/v1/chat/completions", "/v1/messages"):
        answer = client.post(path, json=asked)
        assert answer.status_code == 400
        assert "max_tokens" in answer.text
        many = client.post(path, json=asked | {"messages": messages * 4, "max_tokens": 5})
        assert many.status_code == 400
        assert "max_messages" in many.text
    for path, field in (("/v1/responses", "input"), ("/v1/messages/count_tokens", "messages")):
        assert "max_messages" in client.post(path, json={field: messages * 4}).text
    assert client.post("/v1/completions", json={"prompt": "Lily", "max_tokens": 6}).status_code == 400
    made = client.post("/v1/chat/completions", json={"messages": messages, "ignore_eos": True}).json()
    assert made["usage"]["completion_tokens"] == 5
    infer = {"messages": messages, "encoding": "text", "max_tokens": 6}
    assert client.post("/infer", json=infer).status_code == 400


# ---- templates, grammars


@pytest.mark.parametrize(
    "variables",
    [
        {"messages": []},
        {"bos_token": "x"},
        {"__class__": 1},
        {"add_generation_prompt": False},
        {"enable_thinking": "x"},
    ],
    ids=str,
)
def test_a_request_cannot_set_what_it_should_not_in_a_template(served: Running, variables: dict[str, object]) -> None:
    ask = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": variables}
    for path in ("/v1/chat/completions", "/apply-template"):
        answer = served.client().post(path, json=ask)
        assert answer.status_code == 400
        assert "chat_template_kwargs" in answer.json()["error"]["message"]


def test_messages_that_a_template_could_choke_on_are_a_400(served: Running) -> None:
    deep: object = "x"
    for _ in range(60):
        deep = [deep]
    for messages in (
        [], [1], [{}], [{"role": "user"}], [{"role": 1, "content": "x"}], [{"role": "user", "content": deep}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}],
        [{"role": "user", "content": "x", "more": deep}], [{"role": "user", "content": None}],
    ):  # fmt: skip
        answer = served.client().post("/v1/chat/completions", json={"messages": messages})
        assert answer.status_code == 400, answer.text


def test_hostile_grammars_are_refused_beside_the_others(served: Running) -> None:
    deep: dict[str, object] = {"type": "string"}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    others: list[httpx.Response] = []
    client = served.client()
    thread = threading.Thread(
        target=lambda: others.append(client.post("/v1/completions", json={"prompt": "Lily", "max_tokens": 50}))
    )
    thread.start()
    for form in (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": deep}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "http://evil.example/x"}}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "regex", "regex": "(" * 2000},
        {"type": "regex", "regex": r"(a+)+\1"},
        {"type": "lark", "lark": "start: " + "a" * 300_000},
        {"type": "choice", "choice": []},
        {"type": "nothing"},
        {},
    ):
        answer = client.post("/v1/completions", json={"prompt": "Lily", "max_tokens": 2, "response_format": form})
        assert answer.status_code == 400, (form, answer.text)
    thread.join(60)
    assert others[0].status_code == 200


# ---- headers, logs


def test_a_request_id_is_ours_or_a_harmless_one(served: Running) -> None:
    client = served.client()
    assert client.get("/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for wrong in ("a b", "a" * 65, "<script>", "é".encode("latin-1").decode("latin-1")):
        found = client.get("/health", headers={"x-request-id": wrong.encode("latin-1")}).headers["x-request-id"]
        assert found != wrong
        assert len(found) == 16


def test_logs_are_lines_that_no_request_can_forge(
    served_with: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    from sporelm.serve.http.request_log import JsonLogFormatter, TextLogFormatter

    running = served_with(keys=KEYS)
    with caplog.at_level("INFO", logger="sporelm.serve"):
        answer = running.client("key-of-anna").get("/x%0a%1b[31mspoofed")
        wait_until(lambda: "spoofed" in caplog.text)  # written when the answer has been sent
    assert answer.status_code == 404
    (record,) = [each for each in caplog.records if "spoofed" in each.getMessage()]
    line = TextLogFormatter().format(record)
    assert "\n" not in line
    assert "\x1b" not in line
    told = json.loads(JsonLogFormatter().format(record))
    assert told["status"] == 404
    assert told["key"] == "anna"
    assert told["request_id"] == answer.headers["x-request-id"]
    assert "key-of-anna" not in line + JsonLogFormatter().format(record)


def test_a_reader_who_takes_nothing_is_disconnected(serve: Serve) -> None:
    running = serve(write_seconds=0.3)
    engine, begun = running.server.models.loaded["story"].llm.engine, threading.Event()
    add = engine.add

    def noted(request: Request) -> Request:
        added = add(request)
        begun.set()
        return added

    engine.add = noted  # type: ignore[method-assign]
    body = json.dumps(LONG | {"prompt": ["Lily"] * 40, "logprobs": 50, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", running.port))
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert begun.wait(60)
        wait_until(running.engine_idle)
    assert running.client().get("/health").status_code == 200


def test_errors_name_no_place_of_the_server(
    chatty: Path, tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "a secret place"
    place.mkdir()
    (place / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    shutil.copytree(chatty, place / "mute")
    settings = json.loads((place / "mute" / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (place / "mute" / "tokenizer_config.json").write_text(json.dumps(settings))
    names = {"broken": "broken.gguf", "gone": "gone.gguf", "mute": "mute", "cut": "cut"}
    specs = [ModelSpec(name, str(place / file)) for name, file in names.items()]
    client = serve(models=(ModelSpec("story", str(chatty)), *specs)).client()
    messages = [{"role": "user", "content": "x"}]
    for name in names:
        wanted = 400 if name == "mute" else 500
        for path, body in (
            ("/v1/chat/completions", {"messages": messages}),
            ("/v1/messages", {"messages": messages, "max_tokens": 1}),
            ("/v1/responses", {"input": "x"}),
            ("/api/chat", {"messages": messages}),
            ("/apply-template", {"messages": messages}),
            ("/infer", {"messages": messages, "encoding": "text"}),
        ):
            answer = client.post(path, json=body | {"model": name})
            assert answer.status_code == wanted, answer.text
            assert name in answer.text
            assert "secret" not in answer.text
        answer = client.post("/api/pull", json={"model": name})
        assert "secret" not in answer.text
        for path in ("/api/tags", "/v1/models", "/health", "/metrics", "/ready"):
            assert "secret" not in client.get(path).text
    assert str(place / "broken.gguf") in caplog.text, "the log says where"
