"""A server that is told to end, or killed, in the middle of its work, and the next one on the same folder."""

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from system.processes import command, environment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
PATH = "/api/ui/conversations"
SAY: dict[str, Any] = {"encoding": "text", "temperature": 0, "max_tokens": 8}
Start = Callable[[], tuple["subprocess.Popen[str]", httpx.Client]]


@pytest.fixture
def start(chatty: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts servers on one folder, of whose sessions one is awake at a time."""
    made: list[subprocess.Popen[str]] = []
    clients: list[httpx.Client] = []

    def begin() -> tuple["subprocess.Popen[str]", httpx.Client]:
        words = ("serve", f"story={chatty}", "--port", 0, "--threads", 1, "--max-context", 256, "--max-sessions", 1)
        process = subprocess.Popen(
            command(*words, "--session-dir", tmp_path / "kept"),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        made.append(process)
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"at (http://127\.0\.0\.1:\d+) ", line):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                clients.append(httpx.Client(base_url=found[1], timeout=60, trust_env=False))
                return process, clients[-1]
        raise AssertionError("".join(lines))

    yield begin
    for client in clients:
        client.close()
    for process in made:
        process.kill()
        process.wait(60)
        if process.stderr is not None:
            process.stderr.close()


def say(client: httpx.Client, text: str, **more: Any) -> str:
    made = client.post("/infer", json=SAY | {"messages": [{"role": "user", "content": text}]} | more)
    assert made.status_code == 200, made.text
    return made.text


class Writer:
    """A client that changes conversations and sessions all the time, and knows what the server confirmed."""

    def __init__(self, client: httpx.Client, number: int) -> None:
        self.client, self.number = client, number
        self.versions: dict[str, int] = {}  # of conversations, that were confirmed
        self.slept: set[str] = set()  # sessions that gave way to a later one
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        latest = ""
        with suppress(httpx.HTTPError):
            for count in range(10_000):
                kept = self.client.post(PATH, json={"title": f"{self.number}-{count}"}).json()
                self.versions[kept["id"]] = kept["version"]
                for place in range(3):
                    message = {"id": f"{place:032x}", "role": "user", "content": f"{place} " + "long " * 4000}
                    change = {"version": kept["version"], "messages": [message]}
                    kept = self.client.patch(f"{PATH}/{kept['id']}", json=change).json()
                    self.versions[kept["id"]] = kept["version"]
                name = f"w{self.number}-{count}"
                say(self.client, f"Once {count}", session_id=name)
                if latest:
                    self.slept.add(latest)
                latest = name


def killed(process: "subprocess.Popen[str]", *writers: Writer) -> None:
    """End a server as a lack of memory does."""
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    for writer in writers:
        writer.thread.join(60)
        assert not writer.thread.is_alive()


def assert_whole(client: httpx.Client, folder: Path, writer: Writer) -> None:
    """Everything that was confirmed is there, and nothing is half there."""
    listed = client.get(PATH, params={"limit": 500}).json()["conversations"]
    found = {each["id"]: client.get(f"{PATH}/{each['id']}").json() for each in listed}
    for name, version in writer.versions.items():
        assert found[name]["version"] >= version, "a change that was confirmed is gone"
    for kept in found.values():
        assert len(kept["messages"]) == kept["version"] - 1
        assert all(len(message["content"]) == 20_002 for message in kept["messages"])
    files = [path for path in folder.rglob("*.json") if path.is_file()]
    assert len(files) >= len(writer.versions)
    for path in files:
        json.loads(path.read_bytes())
    for name in writer.slept:
        again = say(client, "The dog", session_id=name, dialog_pos=2)
        alone = client.post(
            "/infer",
            json=SAY | {"messages": [{"role": "user", "content": "x"}], "session_id": name, "dialog_pos": 5},
        )
        assert alone.json()["current_dialog_pos"] == 4
        assert again


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.all)])
def test_what_slept_wakes_and_nothing_is_half_written(start: Start, tmp_path: Path, kills: int) -> None:
    chance, folder = random.Random(kills), tmp_path / "kept"
    process, client = start()
    first = say(client, "Once upon a time", session_id="long")
    second = say(client, "The dog", session_id="long", dialog_pos=2)
    say(client, "Lily", session_id="other")  # so that the first one sleeps
    for number in range(kills):
        writer = Writer(client, number)
        end = time.monotonic() + 120
        while len(writer.slept) < 2:
            assert time.monotonic() < end
            time.sleep(0.005)
        time.sleep(chance.random() ** 2 * 0.2)
        killed(process, writer)
        process, client = start()
        assert not list(folder.rglob("*.part"))
        assert_whole(client, folder, writer)
        assert say(client, "The dog", session_id="long", dialog_pos=2) == second
    assert say(client, "Once upon a time", session_id="long") == first
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, 143)


def test_a_session_that_never_slept_is_there_after_a_kill(start: Start, tmp_path: Path) -> None:
    process, client = start()
    first = say(client, "Once upon a time", session_id="only")
    (tmp_path / "kept" / "sessions").mkdir(exist_ok=True)
    end = time.monotonic() + 60
    while not (files := list((tmp_path / "kept" / "sessions").glob("*.session"))):  # some seconds after the answer
        assert time.monotonic() < end
        time.sleep(0.02)
    written = files[0].read_bytes()
    say(client, "The dog", session_id="only", dialog_pos=2)
    while files[0].read_bytes() == written:  # what was said since is written as well
        assert time.monotonic() < end
        time.sleep(0.02)
    killed(process)
    process, client = start()
    body = SAY | {"messages": [{"role": "user", "content": "x"}], "session_id": "only", "dialog_pos": 5}
    assert client.post("/infer", json=body).json()["current_dialog_pos"] == 4
    assert say(client, "Once upon a time", session_id="only") == first


@pytest.mark.all
@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_finishes_streams_and_a_second_one_ends_at_once(start: Start, signals: int) -> None:
    process, client = start()
    body = {"prompt": "Once upon a time", "max_tokens": 240, "ignore_eos": True, "stream": True, "n": 8}
    lines: list[str] = []
    with client.stream("POST", "/v1/completions", json=body) as answer:
        pieces = answer.iter_lines()
        lines.append(next(pieces))
        process.send_signal(signal.SIGTERM)
        if signals == 1:
            lines += pieces
            assert [line for line in lines if line][-1] == "data: [DONE]"
            assert sum('"finish_reason":"length"' in line for line in lines) == 8
        else:
            process.send_signal(signal.SIGINT)
            with suppress(httpx.HTTPError):
                lines += pieces
    assert process.wait(60) in ((0, 143) if signals == 1 else (0, 130, 143, -signal.SIGINT, -signal.SIGTERM))
    with pytest.raises(httpx.ConnectError):
        client.get("/health")
