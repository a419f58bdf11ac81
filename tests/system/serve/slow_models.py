"""Models whose engines are slow, never stop by themselves, or wait for a crowd of requests."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sporelm import AsyncLLM, SamplingParams
from sporelm.serve.http import api_call
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.serve.serve_config import ModelSpec

# An answer that does not end by itself on any machine, unless a test asks for fewer tokens.
LONG = {"prompt": "Once upon a time", "max_tokens": 10**7, "temperature": 0, "ignore_eos": True, "roll": True}
Opener = Callable[[ModelSpec, object], AsyncLLM]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds. Fails after the time limit."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.01)


def slow_model(seconds: float) -> Opener:
    """Return an opener of models whose steps take this long."""

    def open_model(spec: ModelSpec, progress: object) -> AsyncLLM:
        model = AsyncLLM(spec.path, threads=1)
        runner = model.llm.engine.runner
        run = runner.run
        embed = runner.embed

        def slow_run(step: Any) -> Any:
            time.sleep(seconds)
            return run(step)

        def slow_embed(step: Any) -> Any:
            time.sleep(seconds)
            return embed(step)

        runner.run = slow_run  # type: ignore[method-assign]
        runner.embed = slow_embed  # type: ignore[method-assign]
        return model

    return open_model


def endless_model(seconds: float) -> Opener:
    """Return an opener of models whose steps take this long, and whose answers never end by themselves."""

    def open_model(spec: ModelSpec, progress: object) -> AsyncLLM:
        model = slow_model(seconds)(spec, progress)
        prepare = model.llm.prepare_generation

        def without_eos(ids: Any, params: SamplingParams, *args: Any, **options: Any) -> Any:
            return prepare(ids, replace(params, ignore_eos=True), *args, **options)

        model.llm.prepare_generation = without_eos  # type: ignore[method-assign]
        return model

    return open_model


def crowded_model(monkeypatch: pytest.MonkeyPatch, count: int, tokens: int) -> Opener:
    """Return an opener of models that run one request at a time, and that stop until `count` answers of `tokens` tokens
    were requested."""
    is_complete = threading.Event()
    start_answers = api_call.start_answers
    requested = list[object]()

    async def count_answers(model: ServedModel, answers: Any) -> Any:
        requested.extend(answer for answer in answers if answer.request.max_tokens == tokens)
        if len(requested) >= count:
            is_complete.set()
        return await start_answers(model, answers)

    def open_model(spec: ModelSpec, progress: object) -> AsyncLLM:
        model = AsyncLLM(spec.path, threads=1, max_batch=1)
        run = model.llm.engine.runner.run

        def run_when_complete(step: Any) -> Any:
            assert not requested or is_complete.wait(60)
            time.sleep(0.02)
            return run(step)

        model.llm.engine.runner.run = run_when_complete  # type: ignore[method-assign]
        return model

    monkeypatch.setattr(api_call, "start_answers", count_answers)
    return open_model
