"""A server that ends while it answers: what those hear who wait, and what its log says."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from system.serve.running_server import Running
from system.serve.slow_models import LONG, slow_model, wait_until

Serve = Callable[..., Running]


@pytest.mark.parametrize("twice", [False, True])
def test_an_answer_that_is_broken_off_ends_with_an_error_and_the_log_has_no_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture, twice: bool
) -> None:
    running = serve(slow_model(0.02), shutdown_seconds=60 if twice else 0.1)
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        with running.client().stream("POST", "/v1/completions", json=LONG | {"stream": True}) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(60)
    end: Any = running.listener.handle_exit
    running.loop.call_soon_threadsafe(end, signal.SIGTERM, None)
    wait_until(lambda: any("Ctrl-C again" in record.getMessage() for record in caplog.records))
    if twice:
        running.loop.call_soon_threadsafe(end, signal.SIGINT, None)
    thread.join(60)
    assert "the answer was cancelled: the server is shutting down" in [line for line in lines if line][-1]
    said = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert [record.getMessage() for record in said] == [
        "waiting for 1 answer; Ctrl-C again ends at once",
        *(() if twice else ("1 answer not finished in 0.1 s (shutdown_seconds): ended with an error",)),
    ]
    assert not any(record.exc_info for record in said)
    assert running.server.is_draining
    assert running.server.readiness_problems() == ["the server is shutting down: it accepts no new requests"]
