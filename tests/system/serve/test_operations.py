"""Health, readiness, metrics, the description, disconnects, time limits, and the end of a server."""

import asyncio
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from sporelm import AsyncLLM
from sporelm.serve.http import api_call
from sporelm.serve.model_pool.served_model import PING_SECONDS
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from system.serve.running_server import Running
from system.serve.slow_models import LONG, crowded_model, slow_model, wait_until

Serve = Callable[..., Running]


def test_health_readiness_and_the_description(served: Running) -> None:
    client = served.client()
    assert client.get("/health").json() == {"status": "ok", "troubles": []}
    assert client.get("/ready").status_code == 200
    described = client.get("/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    assert described["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    page = client.get("/docs")
    assert "/v1/chat/completions" in page.text
    assert "http" not in page.text.replace("http-equiv", "")  # nothing is asked of other sites
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_metrics_have_the_names_that_dashboards_know(served: Running) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    client = served.client()
    client.post("/v1/completions", json={"prompt": "Lily", "max_tokens": 3}).raise_for_status()
    text = client.get("/metrics").text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "time_to_first_token_seconds"):
        assert f"vllm:{name}" in found
    (generated,) = found["vllm:generation_tokens"].samples
    assert generated.name == "vllm:generation_tokens_total"
    assert generated.labels == {"model_name": "story"}
    assert generated.value >= 3
    buckets = [each for each in found["vllm:e2e_request_latency_seconds"].samples if each.name.endswith("_bucket")]
    assert buckets[-1].labels["le"] == "+Inf"
    assert [each.value for each in buckets] == sorted(each.value for each in buckets)


def counted(client: httpx.Client, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a family, by the values of their labels in the order of their names."""
    from prometheus_client.parser import text_string_to_metric_families

    found = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in found[name].samples}


def test_answers_are_counted_by_route_method_and_status(served: Running) -> None:
    client = served.client()
    for path in ("/nowhere/1", "/nowhere/2", "/v1/models/story", "/v1/models/none"):
        client.get(path)
    client.get("/v1/completions")
    client.request("PROPFIND", "/health")
    found = counted(client, "sporelm:http_requests")
    assert found["GET", "other", "404"] >= 2
    assert found["GET", "/v1/models/{model:path}", "200"] >= 1
    assert found["GET", "/v1/models/{model:path}", "404"] >= 1
    assert found["GET", "/v1/completions", "405"] >= 1
    assert found["other", "/health", "405"] >= 1
    assert not any("nowhere" in path for _, path, _ in found)


def test_the_list_of_models_is_there_with_a_slash_and_says_how_much_goes_in(served: Running) -> None:
    client = served.client()
    listed = client.get("/v1/models").json()
    assert client.get("/v1/models/").json() == listed
    assert client.get("/v1/models/story").json() == listed["data"][0]
    assert listed["data"][0]["max_input_tokens"] == listed["data"][0]["max_context"] == 512


def test_an_engine_that_stalls_is_told_within_five_seconds(serve: Serve) -> None:
    gate = threading.Event()
    stuck = threading.Event()

    def open_model(spec: ModelSpec, progress: object) -> AsyncLLM:
        made = AsyncLLM(spec.path, threads=1)
        step = made.llm.engine.runner.run

        def wait(what: Any) -> Any:
            stuck.set()
            assert gate.wait(60)
            return step(what)

        made.llm.engine.runner.run = wait  # type: ignore[method-assign]
        return made

    running = serve(open_model, stall_seconds=0.3)
    client = running.client()
    assert client.get("/health").status_code == 200
    asked = threading.Thread(target=lambda: client.post("/v1/completions", json={"prompt": "Lily", "max_tokens": 2}))
    asked.start()
    assert stuck.wait(60)
    wait_until(lambda: client.get("/health").status_code == 503)
    assert "did not finish a step in 0.3 s" in client.get("/health").json()["troubles"][0]
    ready = client.get("/ready")
    assert (ready.status_code, ready.json()) == (503, client.get("/health").json() | {"status": "not ready"})
    gate.set()
    asked.join(60)
    wait_until(lambda: client.get("/health").status_code == 200)
    assert ServeConfig().stall_seconds + 2 * PING_SECONDS < 5, "as a configuration has it that says nothing of it"


def test_an_engine_that_failed_is_told_and_the_next_request_has_a_new_one(serve: Serve) -> None:
    opened = []

    def open_model(spec: ModelSpec, progress: object) -> AsyncLLM:
        made = AsyncLLM(spec.path, threads=1)
        if not opened:

            def fail(what: Any) -> Any:
                raise RuntimeError("the device is gone")

            made.llm.engine.runner.run = fail  # type: ignore[method-assign]
        opened.append(made)
        return made

    client = serve(open_model).client()
    refused = client.post("/v1/completions", json={"prompt": "Lily"})
    assert refused.status_code == 503
    assert "the device is gone" in refused.json()["error"]["message"]
    assert client.get("/health").status_code == 503
    assert client.post("/v1/completions", json={"prompt": "Lily"}).status_code == 200
    assert client.get("/health").status_code == 200


def test_an_engine_failure_ends_running_streams_with_an_error(serve: Serve) -> None:
    failing = threading.Event()

    def open_model(spec: ModelSpec, progress: object) -> AsyncLLM:
        made = slow_model(0.005)(spec, progress)
        step = made.llm.engine.runner.run

        def fail(what: Any) -> Any:
            if failing.is_set():
                raise RuntimeError("the device is gone")
            return step(what)

        made.llm.engine.runner.run = fail  # type: ignore[method-assign]
        return made

    running = serve(open_model)
    found: list[list[str]] = []
    begun = threading.Semaphore(0)

    def read(path: str, body: dict[str, Any]) -> None:
        lines: list[str] = []
        with running.client().stream("POST", path, json=body) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                begun.release()
        found.append([line for line in lines if line])

    said = {name: value for name, value in LONG.items() if name != "prompt"}
    said |= {"messages": [{"role": "user", "content": "Once upon a time"}]}
    asked = [
        ("/v1/completions", LONG | {"stream": True}),
        ("/v1/chat/completions", said | {"stream": True}),
        ("/v1/completions", LONG | {"prompt": ["Lily"] * 40, "stream": True}),
    ]
    threads = [threading.Thread(target=read, args=each) for each in asked]
    for thread in threads:
        thread.start()
    assert all(begun.acquire(timeout=60) for _ in range(20))
    failing.set()
    for thread in threads:
        thread.join(60)
    assert len(found) == 3
    assert all("the device is gone" in lines[-1] for lines in found), found
    failing.clear()
    client = running.client()
    assert client.get("/health").status_code == 503
    assert client.post("/v1/completions", json={"prompt": "Lily", "max_tokens": 2}).status_code == 200
    assert client.get("/health").status_code == 200


def test_a_stream_goes_on_while_texts_become_vectors_and_who_leaves_them_frees_all(serve: Serve) -> None:
    running = serve(slow_model(0.01))
    engine = running.server.models.loaded["story"].llm.engine
    kinds: list[str] = []
    run, embed = engine.runner.run, engine.runner.embed
    engine.runner.run = lambda step: kinds.append("r") or run(step)  # type: ignore[method-assign]
    engine.runner.embed = lambda step: kinds.append("e") or embed(step)  # type: ignore[method-assign]
    body = json.dumps({"input": ["dog cat " * 100] * 100}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with running.client().stream("POST", "/v1/completions", json=LONG | {"stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            wait_until(lambda: kinds.count("e") > 5)
        wait_until(lambda: not engine.scheduler.num_running_hidden)
        next(lines)
    assert "eee" not in "".join(kinds), "at most one step of a text between two of the stream"
    wait_until(running.engine_idle)
    engine.check_integrity()
    wait_until(lambda: engine.kv_cache.pages.num_free == engine.limits.num_pages)
    scored = running.client().post(
        "/v1/completions", json={"prompt": "Lily ran", "echo": True, "logprobs": 1, "max_tokens": 0}
    )
    assert scored.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_ends_the_answer(serve: Serve, stream: bool) -> None:
    running = serve(slow_model(0.02))
    body = json.dumps(LONG | {"stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        if stream:
            assert b"200 OK" in connection.recv(4096)
        wait_until(lambda: not running.engine_idle())
    wait_until(running.engine_idle)


def test_a_disconnect_during_prefill_frees_the_engine(serve: Serve) -> None:
    running = serve()
    pump = running.server.models.loaded["story"].async_llm.engine_thread
    engine, cancel, left = pump.engine, pump.cancel, threading.Event()
    engine.scheduler.token_budget = 8
    steps: list[int] = []
    step = engine.runner.run

    def run_until_left(what: Any) -> Any:
        steps.append(what.num_tokens)
        assert len(steps) < 3 or left.wait(60)
        return step(what)

    def noted(request: Any) -> None:
        cancel(request)
        left.set()

    engine.runner.run, pump.cancel = run_until_left, noted  # type: ignore[method-assign]
    body = json.dumps({"prompt": "dog cat " * 100, "max_tokens": 1}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: not running.engine_idle())
    wait_until(running.engine_idle)
    assert len(steps) < 15, "the whole prompt would take 25 steps or more"
    engine.check_integrity()
    assert engine.kv_cache.pages.num_free == engine.limits.num_pages


def test_an_answer_that_takes_too_long_ends_with_an_error(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(slow_model(0.05), request_seconds=0.3)
    client = running.client()
    whole = client.post("/v1/completions", json=LONG)
    assert whole.status_code == 504
    assert "request_seconds" in whole.json()["error"]["message"]
    texts = client.post("/v1/embeddings", json={"input": ["Lily " * 50] * 100})
    assert texts.status_code == 504
    in_time, limits = api_call.ApiCall.before_deadline, list[asyncio.Timeout]()

    def noted(call: api_call.ApiCall) -> asyncio.Timeout:
        limits.append(in_time(call))
        return limits[-1]

    monkeypatch.setattr(api_call.ApiCall, "before_deadline", noted)
    object.__setattr__(running.config, "request_seconds", 600.0)
    with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as streamed:
        assert streamed.status_code == 200
        lines = streamed.iter_lines()
        next(lines)
        running.loop.call_soon_threadsafe(limits[-1].reschedule, 0.0)  # its time is over once it has begun
        assert "request_seconds" in [line for line in lines if line][-1]
    wait_until(running.engine_idle)
    engine = running.server.models.loaded["story"].llm.engine
    wait_until(lambda: engine.kv_cache.pages.num_free == engine.limits.num_pages)


def test_a_full_queue_is_429_with_a_time_to_come_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(crowded_model(monkeypatch, 6, 30), max_waiting=1)
    found: list[httpx.Response] = []

    def ask() -> None:
        found.append(running.client().post("/v1/completions", json=LONG | {"max_tokens": 30}))

    several = running.client().post("/v1/completions", json=LONG | {"n": 2})
    assert several.status_code == 400, "they could never wait together, however often they came again"
    assert "max_waiting" in several.json()["error"]["message"]
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    refused = [each for each in found if each.status_code == 429]
    assert refused
    assert {each.status_code for each in found} == {200, 429}
    assert int(refused[0].headers["retry-after"]) > 0
    assert refused[0].json()["error"]["type"] == "rate_limit_error"


def test_a_thousand_prompts_are_answered_or_refused_by_name(serve: Serve) -> None:
    running = serve(max_waiting=4)
    client = running.client()
    engine = running.server.models.loaded["story"].llm.engine
    most, add = [0], engine.add

    def counted(request: Any) -> Any:
        added = add(request)
        most[0] = max(most[0], len(engine.scheduler.running) + len(engine.scheduler.waiting))
        return added

    engine.add = counted  # type: ignore[method-assign]
    made = client.post("/v1/completions", json={"prompt": ["Lily"] * 1000, "max_tokens": 1, "temperature": 0})
    assert made.status_code == 200
    assert len({choice["text"] for choice in made.json()["choices"]}) == 1
    assert [choice["index"] for choice in made.json()["choices"]] == list(range(1000))
    assert most[0] <= engine.limits.max_batch, "no more requests at once than run together"
    vectors = client.post("/v1/embeddings", json={"input": ["Lily"] * 1000}).json()["data"]
    assert [each["index"] for each in vectors] == list(range(1000))
    assert len({tuple(each["embedding"]) for each in vectors}) == 1
    assert client.post("/v1/embeddings", json={"input": ["Lily"] * 2000}).status_code == 400
    refused = client.post("/v1/completions", json={"prompt": ["Lily"] * 2000, "max_tokens": 1})
    assert refused.status_code == 400
    assert "max_prompts" in refused.json()["error"]["message"]
    streamed = client.post("/v1/completions", json={"prompt": ["Lily", "Tom"] * 20, "max_tokens": 2, "stream": True})
    ends = [json.loads(line[6:]) for line in streamed.text.splitlines() if '"finish_reason":"length"' in line]
    assert sorted(each["choices"][0]["index"] for each in ends) == list(range(40))


LARGE = "dog cat " * 1100
READING = {
    "/v1/completions": {"prompt": LARGE},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LARGE}]},
    "/v1/responses": {"input": LARGE},
    "/v1/embeddings": {"input": LARGE},
    "/v1/messages": {"messages": [{"role": "user", "content": LARGE}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": LARGE}]},
    "/api/generate": {"prompt": LARGE, "stream": False},
    "/api/chat": {"messages": [{"role": "user", "content": LARGE}], "stream": False},
    "/api/embed": {"input": LARGE},
    "/tokenize": {"prompt": LARGE},
    "/infer": {"messages": [{"role": "user", "content": LARGE}], "encoding": "text", "max_tokens": 1},
}


def test_large_texts_are_read_beside_the_event_loop(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = served.server.models.loaded["story"].llm.tokenizer
    where: list[str] = []

    def watch(name: str) -> None:
        encode = getattr(tokenizer, name)

        def noted(text: Any, **options: Any) -> list[int]:
            where.append(threading.current_thread().name)
            found: list[int] = encode(text, **options)
            return found

        monkeypatch.setattr(tokenizer, name, noted)

    watch("encode")
    watch("encode_prompt")
    for path, body in READING.items():
        where.clear()
        answer = served.client().post(path, json=body)
        assert answer.status_code in (200, 400), answer.text
        assert where, path
        assert "server" not in where, path


def test_a_server_that_ends_finishes_its_streams(serve: Serve) -> None:
    running = serve(slow_model(0.01))
    text: list[str] = []
    begun = threading.Event()

    def read() -> None:
        with running.client().stream("POST", "/v1/completions", json=LONG | {"stream": True, "max_tokens": 60}) as got:
            for line in got.iter_lines():
                text.append(line)
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(60)
    running.loop.call_soon_threadsafe(running.listener.handle_exit, 15, None)
    thread.join(60)
    assert text[-2] == "data: [DONE]"
    assert any('"finish_reason":"length"' in line for line in text)


def test_models_are_loaded_when_asked_for_and_the_oldest_goes(serve: Serve, chatty: Path) -> None:
    specs = tuple(ModelSpec(name, str(chatty)) for name in ("a", "b", "c"))
    running = serve(models=specs)
    models, client = running.server.models, running.client()
    size = models.loaded["a"].nbytes
    object.__setattr__(running.config, "model_memory", int(2.5 * size))
    for name in ("b", "a", "c"):
        assert (
            client.post("/v1/completions", json={"model": name, "prompt": "Lily", "max_tokens": 1}).status_code == 200
        )
    assert sorted(models.loaded) == ["a", "c"]  # b was unused longest
    cards = {card["id"]: card["loaded"] for card in client.get("/v1/models").json()["data"]}
    assert cards == {"a": True, "b": False, "c": True}
    assert client.post("/v1/completions", json={"model": "d", "prompt": "Lily"}).status_code == 404


def test_a_model_that_is_not_loaded_says_whether_it_has_a_chat_template(
    serve: Serve, chatty: Path, story: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    places = {"story": chatty, "other": chatty, "plain": story, "broken": tmp_path / "broken.gguf"}
    running = serve(models=tuple(ModelSpec(name, str(place)) for name, place in places.items()))
    client = running.client()
    cards = client.get("/v1/models").json()["data"]
    told = {card["id"]: card["chat"] for card in cards}
    assert told == {"story": True, "other": True, "plain": False, "broken": None}
    assert client.get("/v1/models/plain").json()["chat"] is False
    assert list(running.server.models.loaded) == ["story"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not installed")
def test_over_tls_large_answers_and_streams_arrive_whole(serve: Serve, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    where = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words, *where], check=True, capture_output=True)
    running = serve(tls_cert=certificate, tls_key=key)
    url = f"https://127.0.0.1:{running.port}"
    with httpx.Client(base_url=url, verify=False, trust_env=False, timeout=60) as client:
        for count in (1, 300_000):
            told = client.post("/detokenize", json={"tokens": [53] * count}).json()["content"]
            assert len(told) >= count
        streamed = client.post("/v1/completions", json=LONG | {"stream": True, "max_tokens": 30})
        assert streamed.text.rstrip().endswith("data: [DONE]")


def test_unused_models_are_unloaded(serve: Serve) -> None:
    running = serve(idle_seconds=0.2)
    wait_until(lambda: not running.server.models.loaded)
    ready = running.client().get("/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready"), "the next request loads it"
    client, ask = running.client(), {"prompt": "Lily", "max_tokens": 1}
    for count in (1.0, 2.0):  # the counters of a model stay, and go on with it
        assert client.post("/v1/completions", json=ask).status_code == 200
        wait_until(lambda: not running.server.models.loaded)
        assert counted(client, "vllm:generation_tokens") == {("story",): count}
        first = counted(client, "vllm:time_to_first_token_seconds")
        assert first["+Inf", "story"] == count
    assert counted(client, "sporelm:model_loaded") == {("story",): 0.0}
    assert "vllm:num_requests_running" not in client.get("/metrics").text
