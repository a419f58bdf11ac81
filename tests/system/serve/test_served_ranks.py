"""A served model on several processes: a killed worker ends no request, and the service stays up."""

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any

import pytest

from system.processes import list_ranks
from system.serve.running_server import Running

if sys.platform == "win32":
    pytest.skip("signals that kill a process", allow_module_level=True)

PROMPTS = ["Once upon a time", "The dog", "Lily and Tom were playing", "One day, a big cat"]


def complete(running: Running, prompt: str) -> tuple[int, Any]:
    body = {"model": "story", "prompt": prompt, "max_tokens": 150, "temperature": 0}
    reply = running.client().post("/v1/completions", json=body)
    return reply.status_code, reply.json()["choices"][0]["text"]


@pytest.mark.all
def test_a_killed_worker_ends_no_request(serve: Callable[..., Running]) -> None:
    running = serve(engine={"tp": 2, "threads": 2})
    expected = [complete(running, prompt) for prompt in PROMPTS]
    assert {status for status, _ in expected} == {200}
    for _ in range(3):
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            began = monotonic()
            replies = [pool.submit(complete, running, prompt) for prompt in PROMPTS]
            sleep(0.02)
            os.kill(list_ranks()[0], signal.SIGKILL)
            assert running.client().get("/v1/models").status_code == 200, "the server answers meanwhile"
            assert [reply.result() for reply in replies] == expected
            assert complete(running, PROMPTS[0]) == expected[0]
            assert monotonic() - began < 15
    deadline = monotonic() + 5
    while running.client().get("/health").json()["status"] != "ok":
        assert monotonic() < deadline
        sleep(0.1)
