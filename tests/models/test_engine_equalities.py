"""An engine's output does not depend on how it is run, in any number format: in chunks, in a batch, with a cached
prefix, with drafts, after preemption, forked, and after a sleep. Bit for bit, sampled with seeds."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from available import open_available
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
    backend = open_available("cpu", threads=1)
    made = Worker(loaded(path, backend, CONTEXT), backend, limits=LIMITS)
    yield made
    made.close()
    backend.close()


def engine(runner: Worker, speculation: Speculation | None = None, **changes: Any) -> Engine:
    """An engine that knows nothing yet, over the same pages."""
    return Engine(runner, replace(LIMITS, **changes), speculation)


def generate(made: Engine, *requests: Request) -> list[tuple[list[int], list[Any]]]:
    made.run([made.add(request) for request in requests])
    assert [request.finish_reason for request in requests] == ["length"] * len(requests)
    return [(request.generated, request.logprobs) for request in requests]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_the_same_is_said_however_it_is_run(runner: Worker, sampling: Sampling, tmp_path: Path) -> None:
    def make_request(prompt: list[int] = PROMPT, **service: Any) -> Request:
        return Request(prompt, sampling=sampling, max_tokens=24, **service)

    (alone,) = generate(engine(runner), make_request())
    for budget in (1, 7, 64):
        assert generate(engine(runner, token_budget=budget), make_request()) == [alone], f"chunks of {budget}"
    company = [Request(other, sampling=replace(SAMPLINGS[1], seed=5), max_tokens=30) for other in OTHERS]
    assert generate(engine(runner), *company, make_request())[-1] == alone, "beside others"
    made = engine(runner)
    again = [make_request(), make_request()]
    assert [generate(made, each)[0] for each in again] == [alone] * 2
    assert again[1].cached_tokens == 64
    guessing = engine(runner, Speculation(NgramDrafter()))
    assert generate(guessing, make_request()) == [alone], "guessing"
    tight = engine(runner, num_pages=3)
    assert generate(tight, *[make_request(cache_salt=str(number)) for number in range(3)]) == [alone] * 3, "giving way"
    made = engine(runner)  # those before have written to the pages
    sequence = made.sequence()
    generate(made, Request(PROMPT[:50], max_tokens=1, sequence=sequence))
    child = made.fork(sequence)
    assert generate(made, make_request(sequence=sequence), make_request(sequence=child)) == [alone] * 2, "forked"
    made.save_session(child, tmp_path / "a.session", "model", {})
    other = engine(runner)
    woken, _ = other.load_session(tmp_path / "a.session", "model")
    request = make_request(sequence=woken)
    assert generate(other, request) == [alone], "woken"
    assert request.cached_tokens == len(PROMPT) - 1
