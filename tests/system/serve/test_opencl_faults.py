"""A server whose OpenCL device is lost: the requests of its model end with the reason, and all else goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from available import open_available
from sporelm import AsyncLLM
from sporelm.serve.serve_config import ModelSpec
from system.serve.running_server import Running

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from opencl_faults import QUEUE_CALLS, FaultyCalls

PROMPT = {"prompt": "The dog", "max_tokens": 6, "temperature": 0}


def test_a_lost_device_ends_the_requests_of_its_model_alone(
    chatty: Path, serve: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the device is back, the model is loaded again."""
    open_available("opencl").close()
    opened: list[AsyncLLM] = []

    def open_model(spec: ModelSpec, progress: object) -> AsyncLLM:
        opened.append(AsyncLLM(spec.path, backend="opencl", max_context=256, max_batch=2))
        return opened[-1]

    names = ("lost", "whole")
    running = serve(open_model, models=tuple(ModelSpec(name, str(chatty)) for name in names))
    client = running.client()

    def answer(name: str) -> Any:
        return client.post("/v1/completions", json=PROMPT | {"model": name})

    texts = [answer(name).json()["choices"][0]["text"] for name in names]
    assert texts[0] == texts[1]
    faulty = FaultyCalls(monkeypatch)
    faulty.arm(opened[0].llm.backend)
    faulty.broken |= {"finish", *QUEUE_CALLS}
    failed = answer("lost")
    assert failed.status_code >= 500
    message = failed.json()["error"]["message"]
    assert "device" in message
    assert "DEVICE_NOT_AVAILABLE" in message
    assert "Load the model again" in message
    assert answer("whole").json()["choices"][0]["text"] == texts[1]
    assert client.get("/health").status_code == 503
    faulty.broken.clear()
    assert answer("lost").json()["choices"][0]["text"] == texts[0]
    assert client.get("/health").json() == {"status": "ok", "troubles": []}
