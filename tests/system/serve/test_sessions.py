"""Sessions: /infer, /cancel, /fork and /drop, as they are described in docs/server.md."""

import base64
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sporelm.api.conversation import Conversation
from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from sporelm.serve.sessions import session_pool as kept_sessions
from system.serve.running_server import Running, run_server, server_options
from system.serve.slow_models import endless_model, wait_until

Serve = Callable[..., Running]
KEYS = (ApiKey.parse("anna:a"), ApiKey.parse("ben:b"))


@pytest.fixture(scope="module")
def sessions(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("sessions")
    config = ServeConfig(**server_options(models=(ModelSpec("story", str(chatty)),), keys=KEYS, session_dir=folder))
    running, stop = run_server(config)
    yield running
    stop()


@pytest.fixture
def client(sessions: Running) -> httpx.Client:
    return sessions.client("a")


def say(client: httpx.Client, text: str | None, **more: Any) -> httpx.Response:
    """A message of the user, greedily answered in few tokens."""
    messages = [] if text is None else [{"role": "user", "content": text}]
    body = {"messages": messages, "encoding": "text", "temperature": 0, "max_tokens": 8} | more
    return client.post("/infer", json=body)


def test_a_session_goes_on_where_it_was(client: httpx.Client) -> None:
    first = say(client, "Once upon a time", session_id="one")
    assert first.status_code == 200
    assert first.headers["content-type"].startswith("text/plain")
    assert first.headers["x-dialog-pos"] == "2"
    assert first.text
    second = say(client, "The dog", session_id="one", dialog_pos=2)
    assert second.headers["x-dialog-pos"] == "4"
    again = say(client, "The dog", session_id="one", dialog_pos=2)  # reverted, and said again
    assert again.text == second.text
    other = say(client, "The cat", session_id="one", dialog_pos=2)
    assert other.headers["x-dialog-pos"] == "4"
    restarted = say(client, "Once upon a time", session_id="one")
    assert restarted.text == first.text


def test_contents_are_base64_unless_said_otherwise(client: httpx.Client) -> None:
    content = base64.b64encode(b"Once upon a time").decode()
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8}
    assert client.post("/infer", json=body).text == say(client, "Once upon a time").text


def test_events_when_accept_asks_for_them(client: httpx.Client) -> None:
    raw = say(client, "Once upon a time").text
    body = {"messages": [{"role": "user", "content": "Once upon a time"}], "encoding": "text"}
    told = client.post(
        "/infer", json=body | {"temperature": 0, "max_tokens": 8}, headers={"accept": "text/event-stream"}
    )
    assert told.headers["content-type"].startswith("text/event-stream")
    lines = [json.loads(line[6:]) for line in told.text.splitlines() if line.startswith("data: ")]
    assert "".join(line.get("text", "") for line in lines) == raw
    assert lines[-1]["finish_reason"] == "length"
    assert lines[-1]["dialog_pos"] == 2
    assert lines[-1]["usage"]["completion_tokens"] == 8


def test_nothing_is_answered_unless_the_user_spoke_last(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Lily"}, {"role": "assistant", "content": "ran"}]
    body = {"messages": messages, "encoding": "text", "session_id": "even"}
    told = client.post("/infer", json=body)
    assert (told.status_code, told.text, told.headers["x-dialog-pos"]) == (200, "", "2")
    assert say(client, "The dog", session_id="even", dialog_pos=2).text
    empty = say(client, None, session_id="empty")
    assert (empty.status_code, empty.text) == (200, "")
    system = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Lily"}]
    assert client.post("/infer", json={"messages": system, "encoding": "text", "max_tokens": 4}).text


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        ({"messages": [], "dialog_pos": 1}, 416, 0, "Dialog position out of range"),
        ({"messages": [], "session_id": "unknown", "dialog_pos": 1}, 404, 0, "Session not found"),
        ({"messages": [], "encoding": "rot13"}, 400, 1, "Unknown encoding: rot13"),
        ({"messages": [{"role": "user", "content": "%%"}]}, 400, 1, "Decode failed: messages\\[0\\]"),
        ({"messages": [{"role": "user", "content": "/w=="}]}, 400, 1, "Decode failed: messages\\[0\\]"),
        ({"messages": [{"role": "god", "content": ""}]}, 400, 0, "role is 'god'"),
        ({}, 400, 0, "missing required field `messages`"),
        ({"messages": [], "top_k": 1, "top-k": 2}, 400, 0, None),
        ({"messages": [], "session_id": "../x"}, 400, 0, "session id"),
        ({"messages": [], "topk": 1}, 400, 0, "unknown field `topk`"),
    ],
)
def test_what_is_refused(
    client: httpx.Client, body: dict[str, Any], status: int, code: int, message: str | None
) -> None:
    told = client.post("/infer", json=body)
    if message is None:  # nothing is to be answered, so nothing is chosen
        assert told.status_code in (200, 400)
        return
    assert told.status_code == status
    error = told.json()
    assert (error["status"], error["code"]) == (status, code)
    assert __import__("re").search(message, error["message"])


def test_a_position_past_the_end_says_where_the_dialog_is(client: httpx.Client) -> None:
    say(client, "Lily", session_id="short")
    told = say(client, "Tom", session_id="short", dialog_pos=3)
    assert told.status_code == 416
    assert told.json()["current_dialog_pos"] == 2


def test_dashed_names_count_too(client: httpx.Client) -> None:
    one = say(client, "Lily", temperature=2.0, seed=5, **{"top-k": 1})
    assert one.text == say(client, "Lily").text


def test_forks_go_their_own_ways(client: httpx.Client) -> None:
    say(client, "Once upon a time", session_id="trunk")
    asked = {"session_id": "trunk", "new_session_id": "branch"}
    assert client.post("/fork", json=asked).json() == {"message": "fork success"}
    taken = client.post("/fork", json=asked)
    assert (taken.status_code, taken.json()["message"]) == (409, "Session ID already exists")
    missing = client.post("/fork", json={"session_id": "unknown", "new_session_id": "x"})
    assert missing.status_code == 404
    one = say(client, "The dog", session_id="trunk", dialog_pos=2)
    two = say(client, "The dog", session_id="branch", dialog_pos=2)
    assert one.text == two.text
    assert client.post("/drop", json={"session_id": "trunk"}).json() == {"message": "drop success"}
    assert client.post("/drop", json={"session_id": "trunk"}).status_code == 404
    assert say(client, "Tom", session_id="trunk", dialog_pos=4).status_code == 404
    assert say(client, "Tom", session_id="branch", dialog_pos=4).status_code == 200


def test_a_session_is_there_for_its_key_alone(sessions: Running, client: httpx.Client) -> None:
    say(client, "Once upon a time", session_id="mine")
    ben = sessions.client("b")
    assert say(ben, "The dog", session_id="mine", dialog_pos=2).status_code == 404
    for path, body in (("/fork", {"new_session_id": "stolen"}), ("/drop", {}), ("/cancel", {})):
        told = ben.post(path, json={"session_id": "mine"} | body)
        assert told.status_code == 404
        assert told.json()["message"] == "Session not found"
    assert say(ben, "Lily", session_id="mine").status_code == 200  # a session of his own, of the same name
    assert say(client, "The dog", session_id="mine", dialog_pos=2).status_code == 200


def test_sessions_beyond_the_limit_are_saved_and_loaded(serve: Serve, tmp_path: Path) -> None:
    running = serve(max_sessions=2, session_dir=tmp_path)
    client = running.client()
    said = [say(client, "Once upon a time", session_id=f"s{number}").text for number in range(5)]
    assert len(set(said)) == 1
    assert len(running.server.sessions.active) == 2
    files = list((tmp_path / "sessions").glob("*.session"))
    assert len(files) == 3
    assert all(re.fullmatch("[0-9a-f]{16}-[0-9a-f]{64}", path.stem) for path in files)
    if os.name == "posix":
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    answers = [say(client, "The dog", session_id=f"s{number}", dialog_pos=2).text for number in range(5)]
    assert len(set(answers)) == 1
    assert client.post("/drop", json={"session_id": "s0"}).status_code == 200
    assert say(client, "x", session_id="s0", dialog_pos=2).status_code == 404


def test_sessions_outlive_their_server(serve: Serve, tmp_path: Path, chatty: Path) -> None:
    config = ServeConfig(**server_options(models=(ModelSpec("story", str(chatty)),), session_dir=tmp_path))
    running, stop = run_server(config)
    first = say(running.client(), "Once upon a time", session_id="long").text
    stop()
    client = serve(session_dir=tmp_path).client()
    assert say(client, "The dog", session_id="long", dialog_pos=3).json()["current_dialog_pos"] == 2
    assert say(client, "The dog", session_id="long", dialog_pos=2).status_code == 200
    assert say(client, "Once upon a time", session_id="long").text == first


def test_without_a_folder_the_least_recently_used_are_dropped(serve: Serve) -> None:
    client = serve(max_sessions=2).client()
    for number in range(3):
        say(client, "Lily", session_id=f"s{number}")
    assert say(client, "Tom", session_id="s0", dialog_pos=2).status_code == 404
    assert say(client, "Tom", session_id="s2", dialog_pos=2).status_code == 200


def test_one_keys_sessions_do_not_displace_anothers(serve: Serve) -> None:
    running = serve(max_sessions=3, keys=KEYS)
    anna, ben = running.client("a"), running.client("b")
    say(ben, "Lily", session_id="s")
    for number in range(4):
        say(anna, "Lily", session_id=f"s{number}")
    assert say(ben, "Tom", session_id="s", dialog_pos=2).status_code == 200
    assert say(anna, "Tom", session_id="s1", dialog_pos=2).status_code == 404
    assert say(anna, "Tom", session_id="s3", dialog_pos=2).status_code == 200


def test_a_busy_session_can_be_cancelled_and_keeps_what_it_said(serve: Serve) -> None:
    running = serve(endless_model(0.02))
    client = running.client()
    found: list[httpx.Response] = []
    ask = lambda: found.append(say(client, "Once upon a time", session_id="busy", max_tokens=10**7))  # noqa: E731
    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: any(spoken_by(each) > 5 for each in list(running.server.sessions.active.values())))
    assert say(client, "The dog", session_id="busy", dialog_pos=0).status_code == 406
    assert client.post("/fork", json={"session_id": "busy", "new_session_id": "other"}).status_code == 406
    assert client.post("/cancel", json={"session_id": "busy"}).json() == {"message": "cancel success"}
    thread.join(60)
    assert found[0].status_code == 200
    assert found[0].text
    wait_until(running.engine_idle)
    assert client.post("/cancel", json={"session_id": "busy"}).json() == {"message": "nothing to cancel"}
    assert say(client, "The dog", session_id="busy", dialog_pos=2, max_tokens=2).status_code == 200


def spoken_by(session: kept_sessions.Session) -> int:
    """Tokens of the answer that a session is making."""
    return session.stream.answer.request.num_generated if session.stream is not None else 0


def test_a_disconnect_cancels_and_the_text_so_far_stays(serve: Serve) -> None:
    running = serve(endless_model(0.02))
    client = running.client()
    body = {"messages": [{"role": "user", "content": "Once upon a time"}], "encoding": "text", "session_id": "left"}
    with client.stream("POST", "/infer", json=body | {"temperature": 0, "max_tokens": 10**7}) as answer:
        text = next(answer.iter_text())
    wait_until(running.engine_idle)
    wait_until(lambda: say(client, "x", session_id="left", dialog_pos=9).status_code == 416)
    kept = next(iter(running.server.sessions.active.values())).conversation.messages
    assert [message["role"] for message in kept] == ["user", "assistant"]
    assert kept[1]["content"].startswith(text)
    assert say(client, "The dog", session_id="left", dialog_pos=2, max_tokens=2).status_code == 200


def test_anonymous_requests_leave_nothing_behind(sessions: Running, client: httpx.Client) -> None:
    engine = sessions.server.models.loaded["story"].llm.engine
    before = len(engine.kv_cache.sequences)
    for _ in range(5):
        say(client, "Lily")
        say(client, None)
    wait_until(lambda: len(engine.kv_cache.sequences) <= before)
    engine.check_integrity()


def gated(monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> tuple[threading.Event, threading.Event]:
    """Has a function wait: an event for when it was called first, and one that lets it go on."""
    called, go_on, real = threading.Event(), threading.Event(), getattr(place, name)

    def wait(*words: Any, **more: Any) -> Any:
        called.set()
        assert go_on.wait(60)
        return real(*words, **more)

    monkeypatch.setattr(place, name, wait)
    return called, go_on


def in_thread(what: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(what()))
    thread.start()
    return thread, found


def leave_after(running: Running, called: threading.Event, **body: Any) -> None:
    """Ask for something and hang up as soon as an event has come."""
    data = json.dumps({"messages": [{"role": "user", "content": "Lily"}], "encoding": "text"} | body).encode()
    head = b"POST /infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(data) + data)
        assert called.wait(60)
    time.sleep(0.1)  # until the server has heard of it


def assert_nothing_held(running: Running) -> None:
    engine = running.server.models.loaded["story"].llm.engine
    wait_until(lambda: not engine.kv_cache.sequences)
    assert engine.kv_cache.pages.num_free == engine.limits.num_pages
    engine.check_integrity()


def test_a_disconnect_while_a_session_is_loaded_or_saved_leaves_nothing_behind(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve(max_sessions=1, session_dir=tmp_path)
    client = running.client()
    for name in ("a", "b"):
        say(client, "Once upon a time", session_id=name)
    with monkeypatch.context() as patched:
        called, go_on = gated(patched, Conversation, "restore")
        leave_after(running, called, session_id="a", dialog_pos=2)
        go_on.set()
    wait_until(lambda: say(client, "The dog", session_id="a", dialog_pos=2).status_code == 200)
    with monkeypatch.context() as patched:
        called, go_on = gated(patched, kept_sessions, "write_session")
        leave_after(running, called, session_id="b", dialog_pos=2)  # for which the other is put to sleep
        go_on.set()
    wait_until(lambda: say(client, "The dog", session_id="b", dialog_pos=2).status_code == 200)
    for name in ("a", "b"):
        assert client.post("/drop", json={"session_id": name}).status_code == 200
    assert_nothing_held(running)


def test_a_session_that_is_being_saved_can_be_used_and_dropped(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve(max_sessions=1, session_dir=tmp_path)
    client = running.client()
    for act in ("ask", "drop"):
        say(client, f"Once upon a time {act}", session_id="old")  # another one each time: its file lacks it
        with monkeypatch.context() as patched:
            called, go_on = gated(patched, kept_sessions, "write_session")
            sleeping, _ = in_thread(lambda: say(client, "Lily", session_id="new"))
            assert called.wait(60)
            if act == "ask":
                other, found = in_thread(lambda: say(client, "The dog", session_id="old", dialog_pos=2))
            else:
                other, found = in_thread(lambda: client.post("/drop", json={"session_id": "old"}))
            time.sleep(0.05)
            go_on.set()
            sleeping.join(60)
            other.join(60)
        assert found[0].status_code == 200
    assert client.post("/drop", json={"session_id": "old"}).status_code == 404  # it does not come back
    assert client.post("/drop", json={"session_id": "new"}).status_code == 200
    assert not list(tmp_path.rglob("*.session"))
    assert_nothing_held(running)


def test_a_refused_request_creates_no_session(serve: Serve) -> None:
    running = serve(max_messages=2)
    client = running.client()
    assert say(client, "Lily", session_id="one", top_p=0.5, **{"top-p": 0.5}).status_code == 400
    many = [{"role": "user", "content": "Lily"}] * 3
    assert client.post("/infer", json={"messages": many, "encoding": "text", "session_id": "one"}).status_code == 400
    assert client.post("/drop", json={"session_id": "one"}).status_code == 404
    say(client, "Lily", session_id="two")
    assert client.post("/infer", json={"messages": many, "encoding": "text", "session_id": "two"}).status_code == 400
    assert say(client, "x", session_id="two", dialog_pos=9).json()["current_dialog_pos"] == 2
    assert client.post("/drop", json={"session_id": "two"}).status_code == 200
    assert_nothing_held(running)


def test_a_session_holds_as_much_text_as_a_body(serve: Serve) -> None:
    client = serve(max_body=4096).client()
    said = [{"role": "user", "content": "Lily " * 300}, {"role": "assistant", "content": "ran " * 300}]
    body = {"encoding": "text", "session_id": "full"}
    assert client.post("/infer", json=body | {"messages": said}).status_code == 200
    told = client.post("/infer", json=body | {"messages": said, "dialog_pos": 2})
    assert told.status_code == 400
    assert "max_body" in told.json()["message"]
    assert client.post("/infer", json=body | {"messages": said}).status_code == 200


def test_a_damaged_file_is_not_a_session(serve: Serve, tmp_path: Path) -> None:
    client = serve(max_sessions=1, session_dir=tmp_path).client()
    first = say(client, "Once upon a time", session_id="a").text
    say(client, "Lily", session_id="b")
    (path,) = tmp_path.rglob("*.session")
    path.write_bytes(path.read_bytes()[:-5])
    assert say(client, "The dog", session_id="a", dialog_pos=2).status_code == 404
    assert say(client, "Once upon a time", session_id="a").text == first
