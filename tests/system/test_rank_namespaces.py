"""A model on two hosts, which are two network namespaces joined by a veth pair: values go over gloo."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from network_namespaces import NetworkHost, linked_hosts, why_unavailable
from sporelm import LLM, SamplingParams
from sporelm.engine.ranks import transport
from system.processes import command, environment

pytestmark = pytest.mark.all

PORT = 7000
PROMPTS = ["Once upon a time", "The dog", "Lily and Tom were playing in the park. They"]
SHORT, LONG = 30, 230  # tokens
SECONDS = 90.0

# Rank 0: its input names numbers of tokens, its output has the texts, and the time of a loss.
FIRST_HOST = f"""
import json, sys, threading, time
from sporelm import LLM, SamplingParams
path, options = sys.argv[1], json.loads(sys.argv[2])
def tell(**values):
    print(json.dumps(values), flush=True)
def watch():
    while True:
        reason = group.lost
        if reason is not None:
            tell(lost=reason, at=time.monotonic())
            while group.lost is not None:
                time.sleep(0.01)
        time.sleep(0.01)
with LLM(path, threads=1, **options) as llm:
    group = llm.loaded_engine.worker
    threading.Thread(target=watch, daemon=True).start()
    tell(ready=True)
    for line in sys.stdin:
        params = SamplingParams(max_tokens=int(line), temperature=0.0)
        tell(texts=[each.text for each in llm.generate({PROMPTS!r}, params)], restarts=group.num_restarts)
"""


class Program:
    """A program on one of the hosts: its lines of output, as they come."""

    def __init__(self, words: list[str]) -> None:
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
        )
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.output: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def wait_for(self, text: str) -> str:
        """Return the next line that contains a text."""
        deadline = monotonic() + SECONDS
        while (line := self.lines.get(timeout=max(0.0, deadline - monotonic()))) is not None:
            self.output.append(line)
            if text in line:
                return line
        pytest.fail(f"no {text!r} in {''.join(self.output)}")

    def ask(self, num_tokens: int) -> None:
        """Ask rank 0 for texts."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{num_tokens}\n")
        self.process.stdin.flush()

    def answer(self, key: str) -> Any:
        """Return the next record of rank 0 with a key."""
        return json.loads(self.wait_for(f'"{key}"'))

    def end(self) -> int:
        """Close the program's input, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(SECONDS)

    def close(self) -> None:
        """End the program, whatever it does."""
        self.process.kill()
        self.process.wait()
        self._thread.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[NetworkHost, NetworkHost]]:
    if reason := why_unavailable():
        pytest.skip(reason)
    pytest.importorskip("torch", reason="torch is not installed: pip install 'sporelm[distributed]'")
    with linked_hosts() as pair_of_hosts:
        yield pair_of_hosts


@pytest.fixture(scope="module")
def expected(story: Path) -> Callable[[int], list[str]]:
    """The greedy texts of one rank, by their number of tokens."""
    texts: dict[int, list[str]] = {}

    def generate(num_tokens: int) -> list[str]:
        if num_tokens not in texts:
            with LLM(story, threads=1) as llm:
                params = SamplingParams(max_tokens=num_tokens, temperature=0.0)
                texts[num_tokens] = [each.text for each in llm.generate(PROMPTS, params)]
        return texts[num_tokens]

    return generate


class Pair:
    """Rank 0 on the first host, and workers on the second."""

    def __init__(self, hosts: tuple[NetworkHost, NetworkHost], story: Path, folder: Path, cleanup: ExitStack) -> None:
        self.first, self.second = hosts
        self.story, self.token, self._cleanup = story, folder / "token", cleanup
        self.address = f"{self.first.address}:{PORT}"
        transport.read_or_create_token(self.token)

    def start(self, host: NetworkHost, words: list[str]) -> Program:
        """Start a program on a host."""
        program = Program(host.words(*words))
        self._cleanup.callback(program.close)
        return program

    def serve(self, **division: Any) -> Program:
        """Start rank 0."""
        options = {**division, "remote_ranks": 1, "rank_listen": self.address, "rank_token_file": str(self.token)}
        return self.start(self.first, [sys.executable, "-c", FIRST_HOST, str(self.story), json.dumps(options)])

    def join(self, token: Path | None = None, wait_seconds: int = 30) -> Program:
        """Start a worker."""
        words = ["worker", "--join", self.address, "--token-file", token or self.token, self.story]
        return self.start(self.second, command(*words, "--wait-seconds", wait_seconds))


@pytest.fixture
def pair(hosts: tuple[NetworkHost, NetworkHost], story: Path, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as cleanup:
        yield Pair(hosts, story, tmp_path, cleanup)


@pytest.mark.parametrize("division", [{"tp": 2}, {"pp": 2}], ids=str)
def test_two_hosts_write_what_one_does(
    pair: Pair, expected: Callable[[int], list[str]], division: dict[str, int]
) -> None:
    worker, first = pair.join(), pair.serve(**division)
    first.answer("ready")
    first.ask(LONG)
    assert first.answer("texts") == {"texts": expected(LONG), "restarts": 0}
    assert first.end() == 0
    worker.wait_for("has ended this rank")


def test_the_command_line_has_hosts(pair: Pair, expected: Callable[[int], list[str]]) -> None:
    worker = pair.join()
    options = [
        "--tp",
        2,
        "--remote-ranks",
        1,
        "--rank-listen",
        pair.address,
        "--rank-token-file",
        pair.token,
        "--threads",
        1,
    ]
    words = ["run", pair.story, "-p", PROMPTS[0], "-n", SHORT, "--temp", 0, *options]
    done = subprocess.run(
        pair.first.words(*command(*words)),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert expected(SHORT)[0] in done.stdout
    worker.wait_for("has ended this rank")


def test_a_wrong_token_is_refused(pair: Pair, tmp_path: Path, expected: Callable[[int], list[str]]) -> None:
    wrong = tmp_path / "wrong"
    transport.read_or_create_token(wrong)
    first = pair.serve(tp=2)
    stranger = pair.join(wrong, wait_seconds=5)
    stranger.wait_for("refused this token")
    assert stranger.process.wait(SECONDS) == 1
    pair.join()  # the right one is not kept out by the wrong one
    first.answer("ready")
    first.ask(SHORT)
    assert first.answer("texts")["texts"] == expected(SHORT)
    assert first.end() == 0


@pytest.mark.parametrize("division", [{"tp": 2}, {"pp": 2}], ids=str)
def test_a_killed_worker_is_noticed_and_another_one_continues(
    pair: Pair, expected: Callable[[int], list[str]], division: dict[str, int]
) -> None:
    worker, first = pair.join(), pair.serve(**division)
    first.answer("ready")
    first.ask(SHORT)
    first.answer("texts")
    first.ask(LONG)
    killed = monotonic()
    os.kill(worker.process.pid, signal.SIGKILL)
    assert first.answer("lost")["at"] - killed < 5
    pair.join().wait_for("joined")
    assert first.answer("texts") == {"texts": expected(LONG), "restarts": 1}
    first.ask(SHORT)
    assert first.answer("texts") == {"texts": expected(SHORT), "restarts": 1}
    assert first.end() == 0


def test_a_host_that_vanishes_is_noticed_and_joins_again(pair: Pair, expected: Callable[[int], list[str]]) -> None:
    """The link goes down: no connection ends, there is silence."""
    worker, first = pair.join(), pair.serve(tp=2)
    worker.wait_for("joined")
    first.answer("ready")
    first.ask(LONG)
    cut = monotonic()
    pair.second.set_link("down")
    try:
        assert first.answer("lost")["at"] - cut < 5
    finally:
        pair.second.set_link("up")
    worker.wait_for("joined")
    assert first.answer("texts") == {"texts": expected(LONG), "restarts": 1}
    assert first.end() == 0


def test_a_worker_notices_that_the_first_host_has_vanished(pair: Pair) -> None:
    """Its heartbeats are not acknowledged: the end of no connection tells it."""
    worker, first = pair.join(), pair.serve(tp=2)
    worker.wait_for("joined")
    first.answer("ready")
    cut = monotonic()
    pair.first.set_link("down")
    try:
        worker.wait_for("has lost this rank")
        assert monotonic() - cut < 20
    finally:
        pair.first.set_link("up")
