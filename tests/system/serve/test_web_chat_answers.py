"""Answers of the web chat as jobs of a real server: its limits, its keys, its end."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sporelm.serve.http.api_keys import ApiKey
from system.serve.running_server import Running
from system.serve.slow_models import slow_model, wait_until

Serve = Callable[..., Running]
PATH = "/api/ui/conversations"
A, B, C = ("a" * 32, "b" * 32, "c" * 32)
QUESTION = {"id": A, "role": "user", "content": "Once upon a time"}
ASK = {"id": B, "parent": A, "model": "story"}


def begin(client: httpx.Client, settings: dict[str, Any], **more: Any) -> httpx.Response:
    """Store a question, and have it answered."""
    body = {"id": C, "messages": [QUESTION], "settings": settings}
    assert client.post(PATH, json=body).status_code == 200
    return client.post(f"{PATH}/{C}/answers", json=ASK | more)


def ended(client: httpx.Client) -> dict[str, Any]:
    """The answer, when it has ended."""
    end = time.monotonic() + 60
    while "answering" in (found := client.get(f"{PATH}/{C}").json()):
        assert time.monotonic() < end
        time.sleep(0.01)
    answer: dict[str, Any] = found["messages"][1]
    return answer


def events(client: httpx.Client, place: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Names, data and ids of a conversation's events."""
    headers = {"last-event-id": place} if place else {}
    with client.stream("GET", f"{PATH}/{C}/events", headers=headers) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        name = identity = ""
        for line in reply.iter_lines():
            kind, _, value = line.partition(": ")
            name, identity = (value, identity) if kind == "event" else (name, value if kind == "id" else identity)
            if kind == "data":
                yield name, json.loads(value), identity


def test_an_answer_is_that_of_the_chat_api_and_can_be_followed(serve: Serve, tmp_path: Path) -> None:
    running = serve(session_dir=tmp_path)
    client = running.client()
    settings = {"temperature": 0, "max_tokens": 12}
    begun = begin(client, settings)
    assert begun.status_code == 202
    assert (begun.json()["answer"]["parent"], begun.json()["version"]) == (A, 2)
    answer = ended(client)
    body = {"model": "story", "messages": [{"role": "user", "content": "Once upon a time"}], **settings}
    whole = client.post("/v1/chat/completions", json=body).json()
    assert answer["content"] == whole["choices"][0]["message"]["content"]
    assert (answer["finish"], answer["model"]) == ("length", "story")
    assert answer["stats"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert answer["stats"]["completion_tokens"] == 12
    assert client.post(f"{PATH}/{C}/answers", json=ASK).json()["error"]["code"] == "answer_exists"
    follower = events(client)
    assert next(follower)[:2] == ("state", {"version": 3, "answer": None})
    more = client.post(f"{PATH}/{C}/answers", json={"id": B, "model": "story", "continue": True})
    assert more.status_code == 202
    names = []
    for name, _, _ in follower:
        names.append(name)
        if name in ("end", "changed"):  # one that was quicker than the stream is a change
            break
    assert names[0] in ("answer", "changed")
    twice = client.post("/v1/chat/completions", json=body | {"max_tokens": 24}).json()
    assert ended(client)["content"] == twice["choices"][0]["message"]["content"], "as if it had not been cut"
    follower.close()
    wait_until(running.engine_idle)


def test_an_answer_outlives_its_reader_and_is_stopped_by_another(serve: Serve, tmp_path: Path) -> None:
    running = serve(slow_model(0.02), session_dir=tmp_path)
    client = running.client()
    assert begin(client, {"max_tokens": 200}).status_code == 202
    place, text = "", ""
    for name, data, identity in events(client):
        text += (data["answer"]["content"] if name == "state" else data.get("content", "")) if name != "answer" else ""
        place = identity or place
        if len(text) > 8:
            break
    wait_until(lambda: running.server.answer_jobs.num_followers == 0)
    assert not running.engine_idle(), "it goes on without followers"
    again = events(client, place)
    name, data, _ = next(again)
    assert (name, data["answer"]) == ("state", {"id": B}), "the reader has the beginning"
    while len(text) < 30:
        text += next(again)[1].get("content", "")
    assert client.delete(f"{PATH}/{C}/answers/{B}").json() == {"stopped": B}
    answer = ended(client)
    assert answer["content"].startswith(text)
    assert (answer["finish"], answer["stats"]["prompt_tokens"] > 0) == ("cancelled", True)
    assert client.delete(f"{PATH}/{C}/answers/{B}").json()["error"]["code"] == "not_running"
    wait_until(running.engine_idle)


@pytest.mark.parametrize(
    ("settings", "model", "error"),
    [
        ({"temperature": -3}, "story", {"code": "refused"}),
        ({"n": 100}, "story", {"code": "refused"}),
        ({"max_tokens": 2}, "unknown", {"code": "model_not_found"}),
    ],
)
def test_what_the_chat_api_refuses_is_refused(
    serve: Serve, tmp_path: Path, settings: dict[str, Any], model: str, error: dict[str, Any]
) -> None:
    running = serve(session_dir=tmp_path)
    client = running.client()
    assert client.post(PATH, json={"id": C, "messages": [QUESTION]}).status_code == 200
    store = running.server.answer_jobs.store
    store.update("", C, lambda conversation: conversation | {"settings": settings})  # as older servers accepted them
    assert client.post(f"{PATH}/{C}/answers", json=ASK | {"model": model}).status_code == 202
    answer = ended(client)
    assert answer["finish"] == "error"
    assert {name: answer["error"][name] for name in error} == error
    assert answer["error"]["detail"]


def test_limits_of_the_server_hold(serve: Serve, tmp_path: Path) -> None:
    running = serve(slow_model(0.02), session_dir=tmp_path, request_seconds=0.5, max_tokens=300)
    client = running.client()
    assert begin(client, {}).status_code == 202
    answer = ended(client)
    assert answer["error"] == {"code": "request_timeout", "seconds": 0.5}
    assert answer["content"], "what had come stays"
    wait_until(running.engine_idle)
    client.patch(f"{PATH}/{C}", json={"version": 3, "settings": {"max_tokens": 301}})
    assert client.post(f"{PATH}/{C}/answers", json=ASK | {"id": "d" * 32}).status_code == 202
    end = time.monotonic() + 60
    while "answering" in (found := client.get(f"{PATH}/{C}").json()):
        assert time.monotonic() < end
    assert "max_tokens" in found["messages"][2]["error"]["detail"]
    assert (
        client.post(
            f"{PATH}/{C}/answers", content=b" " * 70_000, headers={"content-type": "application/json"}
        ).status_code
        == 413
    )


def test_a_prompt_that_is_too_long_is_refused_with_its_numbers(serve: Serve, tmp_path: Path) -> None:
    running = serve(session_dir=tmp_path)
    client = running.client()
    context = client.get("/v1/models").json()["data"][0]["max_context"]
    body = {"id": C, "messages": [QUESTION | {"content": "Lily and Ben. " * context}]}
    assert client.post(PATH, json=body).status_code == 200
    client.post(f"{PATH}/{C}/answers", json=ASK)
    error = ended(client)["error"]
    assert (error["code"], error["context"]) == ("context_length_exceeded", context)
    assert error["tokens"] > context


def test_keys_see_their_own(serve: Serve, tmp_path: Path) -> None:
    running = serve(slow_model(0.02), session_dir=tmp_path, keys=(ApiKey.parse("me:one"), ApiKey.parse("you:two")))
    client, other, keyless = running.client("one"), running.client("two"), running.client()
    assert begin(client, {"max_tokens": 100}).status_code == 202
    for method, place in (("POST", "answers"), ("DELETE", f"answers/{B}"), ("GET", "events")):
        body = {"json": ASK} if method == "POST" else {}
        assert other.request(method, f"{PATH}/{C}/{place}", **body).status_code == 404
        assert keyless.request(method, f"{PATH}/{C}/{place}", **body).status_code == 401
    assert client.delete(f"{PATH}/{C}").json() == {"deleted": C}
    wait_until(running.engine_idle)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_server_that_ends_stores_what_came(serve: Serve, tmp_path: Path, is_late: bool) -> None:
    running = serve(slow_model(0.02), session_dir=tmp_path, shutdown_seconds=0.3 if is_late else 60)
    client = running.client()
    assert begin(client, {"max_tokens": 400 if is_late else 20}).status_code == 202
    heard: list[str] = []
    thread = threading.Thread(target=lambda: heard.extend(name for name, _, _ in events(running.client())))
    thread.start()
    wait_until(lambda: "delta" in heard)
    end: Any = running.listener.handle_exit
    running.loop.call_soon_threadsafe(end, signal.SIGTERM, None)
    thread.join(60)
    wait_until(lambda: not running.server.answer_jobs)
    stored = next(path for path in (tmp_path / "conversations").rglob("*.json"))
    answer = json.loads(stored.read_text())["messages"][1]
    assert answer["finish"] == ("interrupted" if is_late else "length")
    assert answer["content"]
    assert heard[-1] == "end"
