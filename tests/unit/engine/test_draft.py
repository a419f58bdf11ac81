"""A draft model's guesses change how soon tokens come, never which, nor how likely each is."""

from collections.abc import Iterator, Sequence
from itertools import count, product

import numpy as np
import pytest

from sporelm.engine import Engine, EngineConfig, ModelOutput, Request, Sampling, Step
from sporelm.engine.request import FinishReason
from sporelm.engine.speculative import ModelDrafter, Speculation
from sporelm.engine.speculative.draft import CHUNK
from sporelm.ops.paged_attention import PAGE
from unit.engine.fake import VOCAB, FakeRunner, engine, expected, limits
from unit.engine.test_constraint import Pattern
from unit.engine.test_engine import prompt

WILD = Sampling(temperature=2.0, seed=3)


class Doubtful(FakeRunner):
    """The fake model, but every `wrong`-th of its answers is another one."""

    def __init__(self, chosen: EngineConfig, wrong: int = 0) -> None:
        super().__init__(chosen)
        self.wrong = wrong

    def run(self, step: Step) -> ModelOutput:
        scores = super().run(step)
        if self.wrong:
            shifted = scores.argmax % self.wrong == 0
            scores.logits[shifted] = np.roll(scores.logits[shifted], 1, axis=1)
            scores.argmax[shifted] = scores.logits[shifted].argmax(axis=-1)
        return scores


pytestmark = pytest.mark.usefixtures("clock")


def drafter(wrong: int = 0, **changes: int) -> ModelDrafter:
    """Over a fake draft model."""
    chosen = limits(**changes)
    return ModelDrafter(Doubtful(chosen, wrong), chosen, VOCAB)


def drafting(guesses: ModelDrafter, **changes: int) -> Engine:
    return engine(Speculation(guesses), **changes)


def run_all(made: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling, tokens: int = 40) -> list[Request]:
    requests = [made.add(Request(each, max_tokens=tokens, sampling=sampling)) for each in prompts]
    made.run(requests)
    made.check_integrity()
    return requests


def test_right_guesses_are_all_accepted_and_save_steps() -> None:
    guesses = drafter()
    made = drafting(guesses)
    (request,) = run_all(made, [prompt(10)], Sampling(), 100)
    assert request.generated == expected(prompt(10), 100)
    assert request.num_accepted_tokens == request.num_draft_tokens > 70
    assert (made.speculation.num_draft_tokens, made.speculation.num_accepted_tokens) == (
        request.num_draft_tokens,
        request.num_accepted_tokens,
    )
    assert len(made.runner.steps) < 25
    assert not guesses.sequences
    guesses.check_integrity()


@pytest.mark.parametrize("wrong", [1, 2, 5])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        WILD,
        Sampling(temperature=30.0, seed=3, repetition_penalty=1.2, presence_penalty=0.5, logprobs=2),
        Sampling(temperature=3.0, seed=9, top_k=20, top_p=0.9, xtc_probability=0.5, xtc_threshold=0.05),
        Sampling(temperature=1.0, seed=4, mirostat=2),
    ],
    ids=["greedy", "sampled", "penalties", "cuts", "mirostat"],
)
def test_guesses_right_or_wrong_leave_the_tokens_as_they_are(wrong: int, sampling: Sampling) -> None:
    texts = [prompt(5, 1), prompt(70, 2), prompt(130, 3)]
    wanted = run_all(engine(num_pages=40), texts, sampling)
    guesses = drafter(wrong, num_pages=40)
    found = run_all(drafting(guesses, num_pages=40), texts, sampling)
    assert [request.context_ids for request in found] == [request.context_ids for request in wanted]
    assert [request.logprobs for request in found] == [request.logprobs for request in wanted]
    assert sum(request.num_draft_tokens for request in found) > 0
    guesses.check_integrity()


def test_guesses_of_many_requests_are_made_in_the_same_steps() -> None:
    guesses = drafter()
    made = drafting(guesses)
    requests = run_all(made, [prompt(10, seed) for seed in range(4)], Sampling(), 30)
    assert all(request.generated == expected(request.prompt, 30) for request in requests)
    assert max(len(step.sequences) for step in guesses.runner.steps) == 4
    assert len(guesses.runner.steps) < sum(request.num_draft_tokens for request in requests) / 2


def test_answers_in_a_given_form_are_the_same() -> None:
    def answers(speculation: Speculation | None) -> list[Request]:
        made = engine(speculation)
        free: list[int] | None = None
        form = [[3, 4], [5], free, free, [7], list(range(40)), free, free, free, [2, 1]]
        sampling = Sampling(temperature=1.0, seed=8)
        requests = [
            made.add(Request(prompt(20, 3), max_tokens=30, sampling=WILD)),
            made.add(Request(prompt(9), max_tokens=30, sampling=sampling, constraint=Pattern(form))),
        ]
        made.run(requests)
        made.check_integrity()
        return requests

    plain, quick = answers(None), answers(Speculation(drafter(3)))
    assert [(request.context_ids, request.finish_reason) for request in quick] == [
        (request.context_ids, request.finish_reason) for request in plain
    ]


def test_several_answers_to_one_prompt_share_it_in_the_draft_too() -> None:
    guesses = drafter()
    made = drafting(guesses)
    first = Request(prompt(130), max_tokens=20, sampling=Sampling(temperature=1.0, seed=1))
    others = [
        Request(prompt(130), max_tokens=20, sampling=Sampling(temperature=1.0, seed=seed), parent=first)
        for seed in (2, 3)
    ]
    requests = [made.add(request) for request in (first, *others)]
    made.run(requests)
    plain = engine()
    for request in requests:
        (alone,) = run_all(plain, [request.prompt], request.sampling, 20)
        assert request.context_ids == alone.context_ids
    read = sum(
        len(scheduled.tokens)
        for step in guesses.runner.steps
        for scheduled in step.sequences
        if not scheduled.num_outputs
    )
    assert 128 <= read < 3 * 128


def test_a_request_that_lost_its_pages_goes_on_as_before() -> None:
    guesses = drafter()
    made = drafting(guesses, num_pages=4)
    requests = run_all(made, [prompt(70, seed) for seed in range(2)], Sampling(), 90)
    assert all(request.generated == expected(request.prompt, 90) for request in requests)
    parts = [scheduled for step in made.runner.steps for scheduled in step.sequences]
    places = [[scheduled.position for scheduled in parts if scheduled.request_id == request.id] for request in requests]
    assert any(each != sorted(each) for each in places)  # some request was recomputed
    assert all(request.num_draft_tokens > 10 for request in requests)
    guesses.check_integrity()


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    guesses = drafter()
    made = drafting(guesses)
    gone, stays = (made.add(Request(prompt(100, seed), max_tokens=60)) for seed in (1, 2))
    while gone.num_draft_tokens == 0:
        made.step()
    made.cancel(gone)
    made.run([stays])
    assert stays.generated == expected(stays.prompt, 60)
    assert not guesses.sequences
    assert guesses.kv_cache.pages.num_free == guesses.limits.num_pages
    guesses.check_integrity()


def test_too_few_pages_of_the_draft_mean_no_guess() -> None:
    guesses = drafter(num_pages=4)
    made = drafting(guesses)
    requests = run_all(made, [prompt(200, seed) for seed in range(3)], Sampling(), 30)
    assert all(request.generated == expected(request.prompt, 30) for request in requests)
    assert sum(request.num_draft_tokens for request in requests) > 0
    guesses.check_integrity()


def test_guessing_stops_where_the_draft_models_context_does() -> None:
    guesses = drafter(max_context=100)
    made = drafting(guesses)
    (request,) = run_all(made, [prompt(60)], Sampling(), 150)
    assert request.generated == expected(prompt(60), 150)
    assert 25 < request.num_draft_tokens <= 40
    drafted = [
        scheduled.position + len(scheduled.tokens) for step in guesses.runner.steps for scheduled in step.sequences
    ]
    assert max(drafted) <= 100


def test_ids_that_only_one_of_the_models_has_are_never_guessed_nor_read() -> None:
    guesses = drafter(vocab=VOCAB + 3)
    assert guesses.vocab == VOCAB
    smaller = ModelDrafter(FakeRunner(limits()), limits(), 50)
    made = drafting(smaller)
    (request,) = run_all(made, [[1, 2, 3]], Sampling(), 60)
    assert request.generated == expected([1, 2, 3], 60)
    held = [token for step in smaller.runner.steps for scheduled in step.sequences for token in scheduled.tokens]
    assert max(held, default=0) < 50


def test_a_long_prompt_is_read_in_chunks_between_the_steps_of_others() -> None:
    guesses = drafter(token_budget=200, num_pages=24)
    made = drafting(guesses)
    requests = run_all(made, [prompt(200, 1), prompt(20, 2)], Sampling(), 30)
    assert all(request.generated == expected(request.prompt, 30) for request in requests)
    reading = [step.num_tokens for step in guesses.runner.steps if not step.sequences[0].num_outputs]
    assert max(reading) == CHUNK
    assert sum(reading) < 230


def test_nan_logits_give_no_draft() -> None:
    guesses = drafter()
    guesses.runner.broken = True
    made = drafting(guesses)
    (request,) = run_all(made, [prompt(70)], Sampling(), 30)
    assert request.generated == expected(prompt(70), 30)
    assert request.num_draft_tokens == 0
    guesses.check_integrity()


def test_the_time_of_guessing_decides_whether_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    def drafted(share: float) -> int:
        """Tokens guessed where guessing takes that share of a step."""
        ticks = count()
        monkeypatch.setattr("sporelm.engine.speculative.speculation.perf_counter", lambda: share * next(ticks))
        guesses = drafter()
        (request,) = run_all(drafting(guesses), [prompt(10)], Sampling(), 200)
        assert request.generated == expected(prompt(10), 200)
        return request.num_draft_tokens

    assert drafted(0.5) > 150
    assert drafted(30.0) < 100


# What is said is distributed as the model says, with right and with wrong guesses.

SMALL = 5


class TableModel(FakeRunner):
    """Scores that depend on the last two tokens, out of a table [SMALL, SMALL, SMALL]."""

    def __init__(self, chosen: EngineConfig, table: np.ndarray) -> None:
        super().__init__(chosen)
        self.table = table

    def run(self, step: Step) -> ModelOutput:
        assert not step.copies
        found = []
        for scheduled in step.sequences:
            cells = self.cells[scheduled.page_table[0] * PAGE :]
            end = scheduled.position + len(scheduled.tokens)
            cells[scheduled.position : end] = scheduled.tokens
            found += [self.table[cells[place - 1], cells[place]] for place in range(end - scheduled.num_outputs, end)]
        logits = np.array(found, np.float32)
        return ModelOutput(logits.argmax(axis=-1).astype(np.int32), logits)


def table(seed: int) -> np.ndarray:
    return np.random.RandomState(seed).normal(0, 0.7, (SMALL, SMALL, SMALL)).astype(np.float32)


def joint(scores: np.ndarray, start: Sequence[int], length: int) -> dict[tuple[int, ...], float]:
    """The exact probability of every continuation of that length."""
    exact = np.exp(scores.astype(np.float64))
    exact /= exact.sum(axis=-1, keepdims=True)
    found = {}
    for tokens in product(range(SMALL), repeat=length):
        known = [*start, *tokens]
        found[tokens] = float(np.prod([exact[known[at], known[at + 1], known[at + 2]] for at in range(length)]))
    return found


def surprise(counts: dict[tuple[int, ...], int], chances: dict[tuple[int, ...], float]) -> float:
    """How many standard deviations the chi-square statistic lies above what chance gives (Wilson and Hilferty 1931).

    Cells of fewer than five expected answers are taken together.
    """
    total = sum(counts.values())
    rare = {tokens for tokens, chance in chances.items() if chance * total < 5}
    cells = [(counts.get(tokens, 0), chance * total) for tokens, chance in chances.items() if tokens not in rare]
    if rare:
        cells.append((sum(counts.get(tokens, 0) for tokens in rare), sum(chances[tokens] for tokens in rare) * total))
    square = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    freedom = len(cells) - 1
    spread = 2 / (9 * freedom)
    return float(((square / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


def answers(large: np.ndarray, small: np.ndarray, many: int, length: int) -> Iterator[Request]:
    """Answers to one prompt with many seeds, guessed at by a small model."""
    chosen = limits(vocab=SMALL, max_batch=4, max_context=64, num_pages=16)
    guesses = ModelDrafter(TableModel(chosen, small), chosen, SMALL)
    made = Engine(TableModel(chosen, large), chosen, Speculation(guesses))
    for first in range(0, many, 4):
        sampling = [Sampling(temperature=1.0, seed=seed) for seed in range(first, first + 4)]
        requests = [made.add(Request([1, 2], max_tokens=length + 1, sampling=each)) for each in sampling]
        made.run(requests)
        made.runner.steps.clear()
        guesses.runner.steps.clear()
        yield from requests


@pytest.mark.parametrize("other", [0, 1], ids=["the same model", "another model"])
def test_sampling_keeps_its_distribution(other: int) -> None:
    """Many seeds: the first tokens together are as likely as the model says, with any drafter."""
    large, small = table(0), table(other)
    counts: dict[tuple[int, ...], int] = {}
    drafted = accepted = 0
    reasons = set[FinishReason | None]()
    for request in answers(large, small, 2400, 3):
        tokens = tuple(request.generated[:3])
        counts[tokens] = counts.get(tokens, 0) + 1
        drafted, accepted = drafted + request.num_draft_tokens, accepted + request.num_accepted_tokens
        reasons.add(request.finish_reason)
    assert reasons == {"length"}
    assert drafted > 2400
    # The same numbers choose the same tokens of the same scores; other scores often differ in what they choose.
    assert accepted == drafted if other == 0 else 0.1 * drafted < accepted < 0.9 * drafted
    assert surprise(counts, joint(large, [1, 2], 3)) < 3
    assert surprise(counts, joint(table(1), [1, 2], 3)) > 10  # the statistic would have noticed
