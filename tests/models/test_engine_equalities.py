"""What an engine says does not depend on how it is run, in any number format: in chunks, beside others, with a prefix
that is held, guessing, after giving way, forked, and after a sleep. Bit for bit, sampled with seeds."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from available import opened
from models.test_worker import loaded
from sporelm.engine import Engine, Request, Sampling, Worker
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.speculative import NgramDrafter, Speculation
from sporelm.quant import BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, QuantFormat
from tiny_files import write_gguf
from tiny_models import SUPER

CONTEXT = 192
LIMITS = EngineConfig(CONTEXT, CONTEXT, SUPER.config["vocab_size"], 300, 4, 24)
PROMPT = SUPER.ids()
OTHERS = [list(reversed(PROMPT)), [*PROMPT[:40], 3, 3], [9, 8, 7]]
SAMPLINGS = (Sampling(), Sampling(temperature=1.2, top_p=0.95, seed=3, repetition_penalty=1.1, logprobs=1))
RARE = (F16, BF16, Q4_0, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0)
FORMATS = [F32, Q4_1, Q4_K, *(pytest.param(form, marks=pytest.mark.all) for form in RARE)]


@pytest.fixture(scope="module", params=FORMATS, ids=lambda form: form.name)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    form: type[QuantFormat] = request.param
    path = write_gguf(tmp_path_factory.mktemp("equal") / "tiny.gguf", SUPER, matrices=form)
    backend = opened("cpu", threads=1)
    made = Worker(loaded(path, backend, CONTEXT), backend, limits=LIMITS)
    yield made
    made.close()
    backend.close()


def engine(runner: Worker, speculation: Speculation | None = None, **changes: Any) -> Engine:
    """An engine that knows nothing yet, over the same pages."""
    return Engine(runner, replace(LIMITS, **changes), speculation)


def said(made: Engine, *requests: Request) -> list[tuple[list[int], list[Any]]]:
    made.run([made.add(request) for request in requests])
    assert [request.finish_reason for request in requests] == ["length"] * len(requests)
    return [(request.generated, request.logprobs) for request in requests]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_the_same_is_said_however_it_is_run(runner: Worker, sampling: Sampling, tmp_path: Path) -> None:
    def asked(prompt: list[int] = PROMPT, **service: Any) -> Request:
        return Request(prompt, sampling=sampling, max_tokens=24, **service)

    (alone,) = said(engine(runner), asked())
    for budget in (1, 7, 64):
        assert said(engine(runner, token_budget=budget), asked()) == [alone], f"chunks of {budget}"
    company = [Request(other, sampling=replace(SAMPLINGS[1], seed=5), max_tokens=30) for other in OTHERS]
    assert said(engine(runner), *company, asked())[-1] == alone, "beside others"
    made = engine(runner)
    again = [asked(), asked()]
    assert [said(made, each)[0] for each in again] == [alone] * 2
    assert again[1].cached_tokens == 64
    guessing = engine(runner, Speculation(NgramDrafter()))
    assert said(guessing, asked()) == [alone], "guessing"
    tight = engine(runner, num_pages=3)
    assert said(tight, *[asked(cache_salt=str(number)) for number in range(3)]) == [alone] * 3, "giving way"
    made = engine(runner)  # those before have written to the pages
    sequence = made.sequence()
    said(made, Request(PROMPT[:50], max_tokens=1, sequence=sequence))
    child = made.fork(sequence)
    assert said(made, asked(sequence=sequence), asked(sequence=child)) == [alone] * 2, "forked"
    made.save_session(child, tmp_path / "a.session", "model", {})
    other = engine(runner)
    woken, _ = other.load_session(tmp_path / "a.session", "model")
    request = asked(sequence=woken)
    assert said(other, request) == [alone], "woken"
    assert request.cached_tokens == len(PROMPT) - 1
