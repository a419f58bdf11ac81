"""An engine's output with recurrent models does not depend on how it is run: in chunks, in a batch, from a prefix, with
drafts, after preemption, forked, cut and after a sleep. Bit for bit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from available import open_available
from families import linear_attention, recurrent, rwkv, selective, write_case
from families.case import Case
from models.test_worker import loaded
from sporelm.engine import Engine, LoadedModel, Request, Sampling, Worker
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.offload import OffloadStore
from sporelm.engine.recording import RecordingFile
from sporelm.engine.recording_replay import Recording, Replay
from sporelm.engine.speculative import DraftTokens, ModelDrafter, NgramDrafter, Speculation
from unit.engine.hashed import SteadySpeculation

CONTEXT = 256
USUAL = ("qwen3next", "mamba2", "falcon-mamba", "falcon-h1", "rwkv7")  # of the others with --all
EACH = [
    case if case.name in USUAL else pytest.param(case, marks=pytest.mark.all)
    for case in (*recurrent.CASES, *selective.CASES, *linear_attention.CASES, *rwkv.CASES)
]
SAMPLED = Sampling(temperature=1.2, top_p=0.95, seed=3, repetition_penalty=1.1, logprobs=1)


def limits_of(case: Case) -> EngineConfig:
    vocab = case.model.config.vocab
    return EngineConfig(CONTEXT, CONTEXT, vocab, 300, 4, 24, num_states=9, state_interval=2)


def prompt_of(case: Case) -> list[int]:
    """A prompt of more than two pages."""
    return [*case.ids(), *reversed(case.ids())]


@pytest.fixture(scope="module", params=EACH, ids=lambda case: case.name)
def loaded_case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Case, Worker]]:
    case: Case = request.param
    path = write_case(tmp_path_factory.mktemp(case.name), case)
    backend = open_available("cpu", threads=1)
    worker = Worker(loaded(path, backend, CONTEXT), backend, limits=limits_of(case))
    yield case, worker
    worker.close()
    backend.close()


def engine(loaded_case: tuple[Case, Worker], speculation: Speculation | None = None, **changes: Any) -> Engine:
    """An engine that knows nothing yet, over the same memory."""
    case, worker = loaded_case
    return Engine(worker, replace(limits_of(case), **changes), speculation)


def generate(engine: Engine, *requests: Request) -> list[tuple[list[int], list[Any]]]:
    engine.run([engine.add(request) for request in requests])
    engine.check_integrity()
    assert [request.finish_reason for request in requests] == ["length"] * len(requests)
    return [(request.generated, request.logprobs) for request in requests]


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_the_same_is_said_however_it_is_run(
    loaded_case: tuple[Case, Worker], sampling: Sampling, tmp_path: Path
) -> None:
    prompt = prompt_of(loaded_case[0])

    def make_request(**service: Any) -> Request:
        return Request(prompt, sampling=sampling, max_tokens=24, **service)

    (alone,) = generate(engine(loaded_case), make_request())
    for budget in (1, 7, 64):
        assert generate(engine(loaded_case, token_budget=budget, max_batch=1), make_request()) == [alone], (
            f"chunks of {budget}"
        )
    company = [Request(prompt[n : n * 3 + 20], sampling=SAMPLED, max_tokens=30) for n in (1, 17, 40)]
    assert generate(engine(loaded_case), *company, make_request())[-1] == alone, "beside others"
    one = engine(loaded_case)
    again = [make_request(), make_request()]
    assert [generate(one, each)[0] for each in again] == [alone] * 2
    assert again[1].cached_tokens == 128
    for drafter in (NgramDrafter(), Right(len(prompt), alone[0])):
        guessing = make_request()
        assert generate(engine(loaded_case, SteadySpeculation(drafter)), guessing) == [alone], "guessing"
    assert 0 < guessing.num_accepted_tokens < guessing.num_draft_tokens
    tight = engine(loaded_case, num_pages=4, num_states=1)
    assert generate(tight, *[make_request(cache_salt=str(number)) for number in range(3)]) == [alone] * 3, "giving way"
    one = engine(loaded_case)
    sequence = one.sequence()
    generate(one, Request(prompt[:50], max_tokens=1, sequence=sequence))
    child = one.fork(sequence)
    assert generate(one, make_request(sequence=sequence), make_request(sequence=child)) == [alone] * 2, "forked"
    cut = make_request(sequence=sequence)
    assert generate(one, cut) == [alone], "cut"
    assert cut.cached_tokens == 128
    one.save_session(child, tmp_path / "a.session", "model", {})
    other = engine(loaded_case)
    woken, _ = other.load_session(tmp_path / "a.session", "model")
    longer, fresh = ([*prompt, *alone[0], 5, 6] for _ in range(2))
    requests = [
        Request(longer, sampling=sampling, max_tokens=9, sequence=woken),
        Request(fresh, sampling=sampling, max_tokens=9, cache_salt="x"),
    ]
    first, second = generate(other, *requests)
    assert first == second, "woken"
    assert (requests[0].cached_tokens, requests[1].cached_tokens) == (len(prompt) + 23, 0)


def test_a_conversation_that_gave_way_goes_on(loaded_case: tuple[Case, Worker], tmp_path: Path) -> None:
    case, worker = loaded_case
    prompt, limits = prompt_of(case), replace(limits_of(case), num_states=2)
    folder = OffloadStore(tmp_path, worker, lambda: "model")
    one = Engine(worker, limits, None, folder)
    talk = one.sequence()
    (first,) = generate(one, Request(prompt, max_tokens=9, sequence=talk))
    one.kv_cache.evict_until(lambda: False)
    assert one.kv_cache.is_offloaded(talk)
    generate(one, Request(prompt[9:], max_tokens=9), Request(prompt[5:], max_tokens=9))  # take what it held
    again = Request([*prompt, *first[0], 7], max_tokens=9, sequence=talk)
    assert generate(one, again) == generate(engine(loaded_case), Request(again.prompt, max_tokens=9))
    assert again.cached_tokens == len(prompt) + 8
    one.close()


def test_a_run_is_recorded_and_repeated_with_its_states(loaded_case: tuple[Case, Worker], tmp_path: Path) -> None:
    case, worker = loaded_case
    prompt, limits = prompt_of(case), limits_of(case)
    recorded, about = Engine(worker, limits), {"limits": {**vars(limits)}}
    file = RecordingFile(tmp_path / "run.jsonl")
    file.follow(recorded, worker, about)
    generate(recorded, Request(prompt, max_tokens=5), Request(prompt[:90], max_tokens=20))
    generate(recorded, Request([*prompt[:130], 1, 2], max_tokens=5))
    file.close()
    worker.recorder = None
    recording = Recording(tmp_path / "run.jsonl")
    assert recording.limits == limits
    copies = [line for _, line in recording.lines() if line.get("step", {}).get("state_copies")]
    assert copies, "otherwise nothing is shown"
    found = Replay(recording, worker).run()
    assert (found.difference, found.stopped) == (None, None)
    assert found.num_sampled == 30


def test_the_model_drafts_for_itself(loaded_case: tuple[Case, Worker]) -> None:
    """A draft model that keeps states goes back to where its guesses began."""
    case, worker = loaded_case
    prompt, small = prompt_of(case), replace(limits_of(case), num_states=4)
    second = Worker(LoadedModel(worker.runner.model, worker.runner.weights), worker.device, limits=small)
    drafter = ModelDrafter(second, small, small.vocab)
    guessed = Request(prompt, sampling=SAMPLED, max_tokens=40)
    plain = Request(prompt, sampling=SAMPLED, max_tokens=40)
    assert generate(engine(loaded_case, SteadySpeculation(drafter)), guessed) == generate(engine(loaded_case), plain)
    drafter.check_integrity()
    assert guessed.num_draft_tokens > 0
    second.close()


class Right:
    """Guesses what is known to come, every fifth token of it wrong."""

    def __init__(self, prompt: int, answer: list[int]) -> None:
        self.prompt, self.answer = prompt, answer

    def read(self, requests: Sequence[Request], alone: bool) -> None:
        """Nothing has to be read."""

    def propose_all(self, wanted: Sequence[tuple[Request, int]], rows: int) -> dict[int, DraftTokens]:
        found: dict[int, DraftTokens] = {}
        for request, most in wanted:
            begin = len(request.context_ids) - self.prompt
            tokens = [int(not token) if place % 5 == 4 else token for place, token in enumerate(self.answer)][
                begin : begin + most
            ]
            if tokens:
                found[request.id] = DraftTokens(tokens, [0.9] * len(tokens))
        return found

    def end(self, request: Request) -> None:
        """Nothing is kept."""
