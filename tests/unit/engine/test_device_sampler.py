"""Tokens drawn on the device, against the host's sampler for the same logits, seeds and history."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from available import open_available
from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.sampling import Sampler, SamplerOutput, Sampling, device_sampler
from sporelm.engine.sampling.device_sampler import (
    DeviceSampler,
    SampledTokens,
    SamplingProgram,
    make_device_options,
)
from sporelm.engine.sampling.logit_edits import collect_edits
from sporelm.engine.sampling.sampler import SamplerState, sample_unprocessed_rows
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.ops import Symbol
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32

VOCAB = 1003
STOP_IDS = (3, 700)


class AnySubset:
    """A constraint that allows other tokens at each place: of a random half, a few, one, or none."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.seed, self.vocab, self.at, self.last = seed, vocab, 0, 0

    def _allowed(self) -> np.ndarray:
        random = np.random.default_rng([self.seed, self.at, self.last])
        share = random.choice([0.9, 0.5, 4 / self.vocab])
        allowed = random.random(self.vocab) < share
        allowed[random.integers(self.vocab)] = True
        return allowed & (random.random() > 0.02)

    @property
    def failure(self) -> str | None:
        return "too complex" if self.at > 9 and self.seed % 7 == 0 else None

    @property
    def ended(self) -> bool:
        return self.at > 20 and self.seed % 3 == 0

    def allows(self, token: int) -> bool:
        return token >= 0 and bool(self._allowed()[token])

    def words(self) -> np.ndarray:
        allowed = np.zeros(-(-self.vocab // 32) * 32, np.bool_)
        allowed[: self.vocab] = self._allowed()
        return np.packbits(allowed, bitorder="little").view("<i4")

    def accept(self, token: int) -> None:
        self.at += 1
        self.last = token

    def forced(self) -> list[int]:
        return [self.last % self.vocab] if self.last % 11 == 0 else []


class Setup(NamedTuple):
    """A device sampler and the host's, each with states of the same requests."""

    device: DeviceSampler
    states: dict[int, SamplerState]
    host: Sampler

    def add(self, request: int, sampling: Sampling, constraint_seed: int | None = None) -> None:
        for states in (self.states, self.host.states):
            constraint = None if constraint_seed is None else AnySubset(constraint_seed, self.device.vocab)
            if not sampling.is_argmax or constraint is not None:
                prompt = [5, 6, 7, 5, request % 100]
                states[request] = SamplerState(sampling, prompt, STOP_IDS, self.device.vocab, constraint)

    def launch(self, logits: np.ndarray, step: Step) -> SampledTokens:
        return self.device.launch(output_on(self.device.backend, logits), step, self.states)

    def check(self, logits: np.ndarray, step: Step) -> SampledTokens:
        """Sample a step on both, and compare the results and the states."""
        sampled = self.launch(logits, step)
        found = sampled.finish()
        expected = self.host.sample(output_on(None, logits), step)
        assert_same(found, expected)
        self.check_states()
        placed = self.device.backend.fetch(sampled.tokens).tolist()
        row = 0
        for scheduled, tokens in zip(step.sequences, found.tokens, strict=True):
            if scheduled.num_outputs == 1 and scheduled.request_id not in sampled.corrected:
                assert tokens == [placed[row]]
            row += scheduled.num_outputs
        return sampled

    def check_states(self) -> None:
        assert not self.device.num_ahead
        for request, state in self.states.items():
            assert state.bits.state["state"] == self.host.states[request].bits.state["state"]


def output_on(backend: Any, logits: np.ndarray) -> ModelOutput:
    """Return logits as the output of a model, on a back-end or on the host."""
    best = np.where(np.isnan(logits).any(axis=1), -1, logits.argmax(axis=1)).astype(np.int32)
    if backend is None:
        return ModelOutput(best, logits)
    return ModelOutput(backend.copy_in(best), backend.copy_in(logits), backend)


def assert_same(found: SamplerOutput, expected: SamplerOutput) -> None:
    """All of it; log probabilities within float32's error, of the same tokens in the same order."""
    assert found._replace(logprobs={}) == expected._replace(logprobs={})
    assert found.logprobs.keys() == expected.logprobs.keys()
    for request, rows in found.logprobs.items():
        for left, right in zip(rows, expected.logprobs[request], strict=True):
            assert list(left.top) == list(right.top)
            values = [np.array([each.logprob, *each.top.values()]) for each in (left, right)]
            np.testing.assert_allclose(*values, rtol=2e-6, atol=2e-6)


def decode_step(requests: Mapping[int, Any] | list[int]) -> Step:
    return Step([ScheduledSequence(request, [0], 9, (0,), 1) for request in requests], [])


@pytest.fixture(scope="module", params=["reference", "torch"])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "reference":
        yield ReferenceBackend()
        return
    found = open_available("torch", threads=1)
    yield found
    found.close()


@pytest.fixture
def setup(backend: Any) -> Iterator[Setup]:
    device = DeviceSampler(backend, VOCAB)
    yield Setup(device, {}, Sampler())
    device.close()


KINDS = ("normal", "ties", "bfloat16", "flat", "equal", "spike", "masked", "zipf", "wide", "unfit")


def random_logits(random: np.random.Generator, kind: str, rows: int, vocab: int) -> np.ndarray:
    x = random.standard_normal((rows, vocab), np.float32) * np.float32(3)
    if kind == "ties":
        return np.round(x)
    if kind == "bfloat16":
        return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if kind == "flat":
        return x * np.float32(1e-4)
    if kind == "equal":
        return np.full_like(x, 2.5)
    if kind == "spike":
        x[np.arange(rows), random.integers(0, vocab, rows)] = 90
    if kind == "masked":
        x[random.random((rows, vocab)) < 0.98] = -np.inf
    if kind == "zipf":
        ranks = np.argsort(random.random((rows, vocab)), axis=1) + 1
        return (x / 10 - np.log(ranks) * random.uniform(1.5, 3, (rows, 1))).astype(np.float32)
    if kind == "wide":
        return x * np.float32(300)
    if kind == "unfit":
        x[0::4, 5], x[1::4, 6], x[2::4] = np.nan, np.inf, -np.inf
    return x


def random_sampling(random: np.random.Generator, vocab: int) -> Sampling:
    """Return options as requests have them, and at the ends of their ranges."""
    options: dict[str, Any] = {"seed": int(random.integers(1 << 62))}
    options["temperature"] = float(random.choice([0, 0.7, 0.8, 1, random.uniform(0.05, 3), 1e-6, 1e-20, 1e-40, 100]))
    likely = {
        "top_k": int(random.choice([1, 20, 40, 100, 700, vocab, 5000])),
        "top_p": float(random.choice([0.5, 0.9, 0.95, 0.99999999, random.uniform(0.01, 1)])),
        "min_p": float(random.choice([0.05, 1, random.uniform(0, 0.5), 1e-310])),
    }
    options |= {name: value for name, value in likely.items() if random.random() < 0.4}
    seldom = {
        "repetition_penalty": float(random.choice([1.1, 1.5, 0.5])),
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "logit_bias": {int(token): float(random.uniform(-5, 5)) for token in random.integers(0, 2 * vocab, 5)},
        "min_tokens": 3,
        "logprobs": int(random.choice([0, 1, 3, 20, 100])),
    }
    options |= {name: value for name, value in seldom.items() if random.random() < 0.15}
    rare = {
        "typical_p": 0.7,
        "xtc_probability": 0.5,
        "dry_multiplier": 0.8,
    }
    options |= {name: value for name, value in rare.items() if random.random() < 0.03}
    if (
        options["temperature"]
        and not options.keys() & {"min_p", "typical_p", "xtc_probability"}
        and random.random() < 0.05
    ):
        options["mirostat"] = int(random.integers(1, 3))
    return Sampling(**options)


def run_requests(setup: Setup, random: np.random.Generator, kind: str, size: int, num_tokens: int) -> None:
    """Run requests of random options together, some of them with a constraint; each step is checked."""
    vocab = setup.device.vocab
    active = list(range(size))
    for request in active:
        constraint = int(random.integers(1 << 30)) if random.random() < 0.25 else None
        setup.add(request, random_sampling(random, vocab), constraint)
    for _ in range(num_tokens):
        if active:
            setup.check(random_logits(random, kind, len(active), vocab), decode_step(active))
        active = [request for request in active if not has_failed(setup.states.get(request))]
    setup.states.clear()
    setup.host.states.clear()


def has_failed(state: SamplerState | None) -> bool:
    return state is not None and state.constraint is not None and state.constraint.failure is not None


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tokens_as_the_host(setup: Setup, kind: str) -> None:
    random = np.random.default_rng([KINDS.index(kind), 1])
    for size in (1, 2, 9, 24):
        run_requests(setup, random, kind, size, 8)
    assert setup.device.num_draws > 50


@pytest.mark.all
def test_the_same_tokens_as_the_host_alone_and_in_company(setup: Setup) -> None:
    """2,000 requests of random options: 1,000 alone, 1,000 in company."""
    random = np.random.default_rng(2)
    for number in range(1000):
        run_requests(setup, random, KINDS[number % len(KINDS)], 1, 6)
    for number in range(25):
        run_requests(setup, random, KINDS[number % len(KINDS)], 40, 6)
    assert setup.device.num_draws > 8000


@pytest.mark.parametrize("vocab", [32_000, 152_064])
def test_the_same_tokens_in_large_vocabularies(backend: Any, vocab: int) -> None:
    device = DeviceSampler(backend, vocab)
    setup, random = Setup(device, {}, Sampler()), np.random.default_rng(vocab)
    for kind in KINDS:
        run_requests(setup, random, kind, 4, 1)
    device.close()


def test_results_alone_and_in_company_are_the_same(setup: Setup) -> None:
    """Rows of other requests and padding change neither tokens nor certainty."""
    random = np.random.default_rng(5)
    rows = 40
    samplings = [random_sampling(random, VOCAB) for _ in range(rows)]
    logits = np.concatenate([random_logits(random, kind, 4, VOCAB) for kind in KINDS])
    for request, sampling in enumerate(samplings):
        setup.add(request, sampling)
    sampled = setup.launch(logits, decode_step(list(range(rows))))
    together = sampled.fetches["draws"].result()[:, 0]
    expected = sampled.finish().tokens
    for request, sampling in enumerate(samplings):
        setup.add(request, sampling)
        sampled = setup.launch(logits[request : request + 1], decode_step([request]))
        if request in sampled.draws:
            assert sampled.fetches["draws"].result()[0, 0] == together[request]
        assert sampled.finish().tokens == [expected[request]]


ORDINARY = {
    "command line": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    "OpenAI": {"temperature": 1.0},
    "top_p": {"temperature": 1.0, "top_p": 0.95},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "every filter": {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
}


@pytest.mark.parametrize("name", ORDINARY)
def test_few_draws_of_ordinary_requests_are_left_to_the_host(backend: Any, name: str) -> None:
    """At most 1 %, of logits whose probabilities fall as a power of the rank."""
    vocab, rows = 32_000, 50
    device = DeviceSampler(backend, vocab)
    setup, random = Setup(device, {}, Sampler()), np.random.default_rng(3)
    for request in range(rows):
        setup.add(request, Sampling(seed=request, **ORDINARY[name]))
    for _ in range(4):
        setup.check(random_logits(random, "zipf", rows, vocab), decode_step(list(range(rows))))
    assert device.num_draws == 4 * rows
    assert device.num_uncertain <= 0.01 * device.num_draws
    device.close()


@pytest.mark.parametrize(
    "options", [(1.0, 0, 1, 0.0), (0.7, 0, 1, 0.0), (1.3, 40, 1, 0.0), (0.9, 0, 0.9, 0.0), (1, 0, 1, 0.02)]
)
def test_numbers_at_the_ends_of_shares_are_uncertain(backend: Any, options: tuple[float, int, float, float]) -> None:
    """Uniform numbers a few roundings beside the host's boundaries: the result is the host's, or uncertain."""
    temperature, top_k, top_p, min_p = options
    random = np.random.default_rng(11)
    logits = random_logits(random, "zipf", 1, VOCAB)[0]
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ends = find_ends(logits, sampling, random)
    steps = random.choice([-1, 1], len(ends)) * 2.0 ** random.uniform(-30, -16, len(ends))
    uniforms = np.clip(ends + steps, 0, 1 - 2.0**-53)
    device = DeviceSampler(backend, VOCAB)
    columns = make_device_options(sampling, VOCAB)
    assert columns is not None
    k = columns.candidates
    rows = np.array([(*columns.columns, uniform) for uniform in uniforms], np.float32)
    same = np.tile(logits, (len(uniforms), 1))
    drawn = ops.draw_tokens(backend.tensor(same), backend.tensor(rows), k=k, whole=True).numpy()
    expected = [draw_at(logits, sampling, float(uniform)) for uniform in uniforms]
    is_certain = drawn[:, 1] != 0
    assert (drawn[is_certain, 0] == np.array(expected)[is_certain]).all()
    is_near = np.abs(steps) < 2.0**-26  # half a rounding of a sum of 1
    assert is_near.sum() > 20
    assert not is_certain[is_near].any()
    assert is_certain[np.abs(steps) > 2.0**-17].mean() > 0.3
    device.close()


class FixedNumber(SamplerState):
    """A state whose random numbers are all the same."""

    def __init__(self, sampling: Sampling, number: float) -> None:
        super().__init__(sampling, ())
        self.number = number

    def next_uniform(self) -> float:
        return self.number


def draw_at(logits: np.ndarray, sampling: Sampling, uniform: float) -> int:
    """Return the host's token for a uniform number."""
    return sample_unprocessed_rows(logits[None], [FixedNumber(sampling, uniform)], [int(logits.argmax())])[0]


def find_ends(logits: np.ndarray, sampling: Sampling, random: np.random.Generator) -> np.ndarray:
    """Return 150 numbers, each the end of a token's share on the host, found by bisection."""
    found = []
    while len(found) < 150:
        low, high = sorted(random.random(2))
        first = draw_at(logits, sampling, low)
        if draw_at(logits, sampling, high) == first:
            continue
        while high - low > 2.0**-38:
            middle = (low + high) / 2
            low, high = (middle, high) if draw_at(logits, sampling, middle) == first else (low, middle)
        found.append(low)
    return np.array(found)


def test_candidates_equal_to_the_last_one_are_uncertain(backend: Any) -> None:
    """torch returns any of them; the host takes the lowest ids."""
    device = DeviceSampler(backend, 5000)
    setup = Setup(device, {}, Sampler())
    logits = np.zeros((60, 5000), np.float32)
    logits[:, 4000:4030] = 1
    for request in range(60):
        setup.add(request, Sampling(temperature=1, top_k=50, seed=request))
    setup.check(logits, decode_step(list(range(60))))
    assert 0 < device.num_uncertain < 60  # those among the 30 greatest are certain
    device.close()


def test_edits_are_those_of_the_logits_processors() -> None:
    """Bit for bit, after tokens were accepted, also where several processors change the same token."""
    random = np.random.default_rng(1)
    options = {"repetition_penalty": 1.7, "presence_penalty": 0.3, "frequency_penalty": 0.1, "min_tokens": 7}
    for names in (
        ["logit_bias"],
        ["repetition_penalty"],
        ["presence_penalty"],
        ["min_tokens"],
        [*options, "logit_bias"],
    ):
        biases = {int(token): 2.5 for token in random.integers(0, VOCAB, 9)} | {3: -1.5}
        chosen = {name: value for name, value in (options | {"logit_bias": biases}).items() if name in names}
        state = SamplerState(Sampling(**chosen), [1, 2, 3, 900], STOP_IDS, VOCAB)
        for _ in range(9):
            logits = random_logits(random, "normal", 1, VOCAB)
            edits = collect_edits(state.processors)
            places = np.stack([np.zeros_like(edits.tokens), edits.tokens], axis=1).astype(np.int32)
            found = ops.edit_logits.reference(logits, places, edits.values)
            for processor in state.processors:
                processor.apply(logits[0])
            assert np.array_equal(found, logits)
            state.accept(int(random.choice([3, 900, random.integers(VOCAB)])))


@pytest.mark.parametrize("kind", ["zipf", "equal"])
def test_steps_launched_ahead(setup: Setup, kind: str) -> None:
    """Step n + 1 is launched before step n is finished; of equal logits the host repeats draws."""
    random = np.random.default_rng(4)
    requests = list(range(6))
    for request in requests:
        setup.add(request, Sampling(temperature=1, top_k=40 if request % 2 else 0, seed=request))
    every = [random_logits(random, kind, len(requests), VOCAB) for _ in range(8)]
    step = decode_step(requests)
    sampled = setup.launch(every[0], step)
    for number in range(1, 9):
        following = setup.launch(every[number], step) if number < 8 else sampled
        expected = setup.host.sample(output_on(None, every[number - 1]), step)
        assert_same(sampled.finish(), expected)
        sampled = following
    setup.check_states()
    assert (setup.device.num_uncertain > 0) == (kind == "equal")


def test_a_discarded_row_leaves_its_state(setup: Setup) -> None:
    """As if its step had not been launched; the other rows go on."""
    random = np.random.default_rng(6)
    setup.add(1, Sampling(temperature=1, seed=1))
    setup.add(2, Sampling(temperature=1, seed=2))
    setup.add(3, Sampling(temperature=1, seed=3), 17)
    first, second = (random_logits(random, "zipf", 3, VOCAB) for _ in range(2))
    launched = setup.launch(first, decode_step([1, 2, 3]))
    launched.cancel_draws({1, 3})
    output = launched.finish()
    assert output.tokens[0] == output.tokens[2] == []
    assert output.tokens[1:2] == setup.host.sample(output_on(None, first[1:2]), decode_step([2])).tokens
    setup.check_states()
    setup.check(second, decode_step([1, 2, 3]))


def test_drafts_and_rare_samplers_are_left_to_the_host(setup: Setup) -> None:
    random = np.random.default_rng(7)
    setup.add(1, Sampling(temperature=0.1, seed=1))
    setup.add(2, Sampling(temperature=1, seed=2, mirostat=2))
    setup.add(3, Sampling(temperature=1, seed=3, logprobs=2))
    logits = random_logits(random, "zipf", 9, VOCAB)
    draft = logits[[0, 1]].argmax(axis=1).tolist()
    sequences = [
        ScheduledSequence(1, [5, *draft], 9, (0,), 3),
        ScheduledSequence(2, [5], 9, (0,), 1),
        ScheduledSequence(7, [5, 5], 9, (0,), 0),
        ScheduledSequence(3, [5], 9, (0,), 1),
        ScheduledSequence(8, [5, 6, 7], 9, (0,), 3),
        ScheduledSequence(9, [5], 9, (0,), 1),
    ]
    step = Step(sequences, [])
    sampled = setup.launch(logits, step)
    assert sampled.draws.keys() == {3}
    assert_same(sampled.finish(), setup.host.sample(output_on(None, logits), step))
    assert sampled.corrected == {1, 2}
    setup.check_states()
    assert not setup.device.draws_on_device(setup.states[2])


def test_a_step_of_greedy_requests_launches_nothing(setup: Setup) -> None:
    sampled = setup.check(random_logits(np.random.default_rng(8), "normal", 3, VOCAB), decode_step([1, 2, 3]))
    assert not sampled.draws
    assert not setup.device.plans


def test_rows_with_too_many_edits_are_left_to_the_host(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_sampler, "MAX_EDITS", 10)
    for request in (1, 2, 3):
        setup.add(request, Sampling(temperature=1, seed=request, repetition_penalty=1.2))
    logits = random_logits(np.random.default_rng(9), "zipf", 3, VOCAB)
    sampled = setup.check(logits, decode_step([1, 2, 3]))
    assert sampled.draws.keys() == {1, 2}
    assert sampled.corrected >= {3}


def test_rewinding_returns_numbers_to_the_generator() -> None:
    state = SamplerState(Sampling(temperature=1, seed=5), ())
    numbers = [state.next_uniform() for _ in range(5)]
    state.rewind(3)
    assert [state.next_uniform() for _ in range(2)] == numbers[2:4]
    state.rewind(-1)
    state.rewind(5)
    assert state.next_uniform() == numbers[0]


def test_every_program_runs_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's device without data: reading a value there, or mixing it with a tensor elsewhere, would raise."""
    backend = open_available("torch")
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(backend, "device", torch.device("meta"))
    rows, counts = 16, {"outputs": 16, "edits": 64, "masked": 8, "scored": 8}
    programs = [
        SamplingProgram(candidates, sums_rows, has_edits, has_masks, top)
        for candidates, sums_rows in ((0, True), (64, False), (VOCAB, True))
        for has_edits, has_masks, top in product((False, True), (False, True), (0, 20))
    ]
    for program in programs:
        plan = Plan(program.trace(VOCAB, 64), backend)
        inputs = {
            name: torch.zeros(
                [counts[extent.name] if isinstance(extent, Symbol) else extent for extent in value.shape],
                dtype=torch.float32 if value.dtype is F32 else torch.int32,
                device="meta",
            )
            for name, value in plan.graph.inputs.items()
        }
        outputs = plan.launch(inputs, {name: counts[name] for name in plan.symbols})
        shapes = {name: tuple(handle.shape) for name, handle in outputs.items()}
        assert shapes["tokens"] == (rows,)
        assert shapes["draws"] == (rows, 3 if program.has_masks else 2)
        assert shapes.get("top_ids", (8, 20)) == (8, 20)
        plan.close()
    backend.close()
