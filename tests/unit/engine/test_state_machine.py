"""Anything that can be asked of an engine, in any order, over pools too small for it: what each request says is what it
would say alone, and every page is accounted for."""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

from sporelm.engine import Engine, EngineConfig, KvSequence, ModelOutput, Request, Sampler, Sampling, Step
from sporelm.engine.kv.kv_sequence import NO_STATE
from sporelm.engine.kv.offload import OffloadStore
from sporelm.engine.kv.prefix_cache import PrefixCache, root_hash
from sporelm.engine.sampling import SamplerOutput, TokenLogprobs
from sporelm.engine.sampling.device_sampler import DeviceSampler
from sporelm.engine.speculative import Drafter, ModelDrafter
from sporelm.errors import ContextOverflow, MemoryShortage, QueueFull, RequestError
from sporelm.ops.paged_attention import PAGE
from unit.engine.hashed import (
    VOCAB,
    Guesses,
    HashedRunner,
    StatefulRunner,
    SteadyPrefillBudget,
    SteadySpeculation,
    Wish,
    cells_of,
    expected_output,
    scores_after,
    state_of,
)
from unit.engine.stand_in_device import LaunchedRunner, LaunchedStatefulRunner

CONTEXT = 4 * PAGE
MAX_SEQUENCES, MAX_FILES, MAX_TEXTS = 6, 3, 2
PATIENCE = 20_000  # steps in which whatever waits must have ended

SAMPLINGS = (
    Sampling(),
    Sampling(),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.8, top_k=7, seed=2),
    Sampling(temperature=1.3, top_p=0.8, min_p=0.02, seed=3, repetition_penalty=1.3),
    Sampling(temperature=1.0, seed=4, logprobs=2, presence_penalty=0.5, frequency_penalty=0.2),
    Sampling(temperature=1.0, seed=5, mirostat=2, mirostat_tau=3.0),
    Sampling(temperature=1.0, seed=6, typical_p=0.7, xtc_probability=0.5),
    Sampling(dry_multiplier=0.8, logprobs=0),
    Sampling(min_tokens=5, logit_bias={3: 5.0, 40: -100.0}),
)
# Prompts are prefixes of these texts, so that they share prefixes.
STEMS = [np.random.default_rng(seed).integers(0, VOCAB, CONTEXT + 10).tolist() for seed in range(2)]
STEMS.append([*STEMS[0][:PAGE], *STEMS[1][PAGE:]])  # the same pages after others

wholes = st.integers(0, 999)  # which one of those there are
lengths = st.one_of(
    st.integers(1, CONTEXT - 1), st.sampled_from([3, 62, 63, 64, 65, 127, 128, 129, 150, 191, 192, 240])
)
shares = st.integers(0, 20).map(lambda number: number / 20)
tails = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3)
manners = st.fixed_dictionaries(
    {
        "sampling": st.sampled_from(SAMPLINGS),
        "max_tokens": st.one_of(st.integers(1, 12), st.integers(1, 90)),
        "stop_ids": st.sampled_from([(), (), (5, 17, 33)]),
        "form": st.sampled_from([None, None, None, (3, False), (9, False), (6, True)]),
        "roll": st.sampled_from([False, False, True]),
    }
)
services = st.fixed_dictionaries({"priority": st.integers(-1, 1), "tenant": st.sampled_from([None, "a", "b"])})
SALTS = ("", "x")
cache_salts = st.sampled_from(["", *SALTS])


def depth_of(key: bytes, index: PrefixCache) -> int | None:
    """How many pages a chain has up to this one; None where one before it is not known any more."""
    depth = 0
    while key in index.parents:
        key, depth = index.parents[key], depth + 1
    return depth if key in {root_hash(cache_salt) for cache_salt in SALTS} else None


class InterruptedSampler(Sampler):
    """May be interrupted after it has sampled, before the tokens are committed."""

    def __init__(self, runner: HashedRunner) -> None:
        super().__init__()
        self.runner = runner

    def sample(self, model_output: ModelOutput, step: Step) -> SamplerOutput:
        sampled = super().sample(model_output, step)
        self.runner.interrupt("sampled")
        return sampled


class AtOnce:
    """Does at once what the threads of a session folder do sometime."""

    def submit(self, job: Callable[..., Any], *given: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(job(*given))
        return done

    def shutdown(self) -> None:
        """There is nothing to wait for."""


class EngineMachine(RuleBasedStateMachine):
    """An engine, what was asked of it, and what must come of that."""

    stateful = False  # the model keeps recurrent states
    overlapped = False  # steps are launched on a device that runs by itself

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.wishes: dict[int, tuple[Request, Wish]] = {}  # those not seen to have ended, by id
        self.sequences: list[KvSequence] = []
        self.files: list[tuple[Path, list[int]]] = []
        self.texts: dict[int, tuple[Request, list[NDArray[np.float32]]]] = {}  # requests for rows, by id
        self.output_ids: dict[int, list[int]] = {}  # the ids of each request, as steps have told them
        self.count = 0

    @initialize(
        pages=st.integers(4, 14),
        budget=st.sampled_from([1, 16, 48, 300, 300]),
        batch=st.integers(1, 6),
        waiting=st.integers(2, 12),
        prefill=st.sampled_from([None, 1, 20]),
        guesses=st.sampled_from([None, 2, 5, 1000, "model", "strange model"]),
        asleep=st.sampled_from([None, 10_000, 1 << 20]),
        states=st.sampled_from([1, 2, 3, 4, 6, 9, 20]),
        paged=st.booleans(),
        doubtful=st.booleans(),
    )
    def begin(
        self, pages: int, budget: int, batch: int, waiting: int, prefill: int | None, guesses: Any, asleep: int | None,
        states: int, paged: bool, doubtful: bool,
    ) -> None:  # fmt: skip
        limits = EngineConfig(CONTEXT, CONTEXT, VOCAB, budget, min(batch, budget), pages, waiting, prefill)
        runner: Callable[..., HashedRunner] = HashedRunner
        if self.stateful:
            limits = replace(limits, num_states=states, state_interval=2)
            runner = partial(LaunchedStatefulRunner if self.overlapped else StatefulRunner, paged=paged)
        elif self.overlapped:
            runner = LaunchedRunner
        self.runner = runner(limits)
        drafter: Drafter | None = Guesses(guesses) if isinstance(guesses, int) else None
        if isinstance(guesses, str):
            small = replace(limits, max_context=3 * PAGE, num_pages=5, token_budget=20)
            drafter = ModelDrafter(runner(small, strange=guesses != "model"), small, VOCAB)
        self.asleep: OffloadStore | None = None
        if asleep is not None:
            self.asleep = OffloadStore(Path(self.folder.name) / "asleep", self.runner, lambda: "model", asleep)
            self.asleep._writer = self.asleep._reader = AtOnce()
        if self.overlapped:
            self.runner.device.is_doubtful = doubtful
            sampler = DeviceSampler(self.runner.device, VOCAB)
            self.engine = Engine(self.runner, limits, None, self.asleep, sampler)
        else:
            self.engine = Engine(self.runner, limits, SteadySpeculation(drafter) if drafter else None, self.asleep)
        self.engine.scheduler.prefill_budget = SteadyPrefillBudget(prefill)
        self.engine.sampler = InterruptedSampler(self.runner)

    @rule(
        stem=wholes,
        length=lengths,
        tail=tails,
        manner=manners,
        service=services,
        cache_salt=cache_salts,
        num_children=st.integers(0, 3),
    )
    def add(
        self, stem: int, length: int, tail: list[int], manner: Any, service: Any, cache_salt: str, num_children: int
    ) -> None:
        prompt = (*STEMS[stem % len(STEMS)][:length], *tail)[:CONTEXT]
        first = self._add(Wish(prompt, **manner), cache_salt=cache_salt, **service)
        for number in range(num_children if first is not None else 0):
            seeded = replace(manner["sampling"], seed=100 + number)
            self._add(Wish(prompt, **manner | {"sampling": seeded}), cache_salt=cache_salt, parent=first, **service)

    @rule(cache_salt=cache_salts)
    def begin_sequence(self, cache_salt: str) -> None:
        if len(self.sequences) < MAX_SEQUENCES:
            self.sequences.append(self.engine.sequence(cache_salt))

    @precondition(lambda self: self.sequences)
    @rule(which=wholes, share=st.one_of(st.just(1.0), shares), stem=wholes, end=lengths, tail=tails, manner=manners,
          service=services, finishes=st.booleans())  # fmt: skip
    def go_on(
        self, which: int, share: float, stem: int, end: int, tail: list[int], manner: Any, service: Any, finishes: bool
    ) -> None:
        """Continue a sequence after all that it holds or held before it gave way, or go back to an earlier place."""
        sequence = self.sequences[which % len(self.sequences)]
        slept = self.asleep.tokens_of(sequence) if self.asleep is not None else []
        whole = max(sequence.tokens, slept, key=len)
        held = whole[: int(share * len(whole))]
        prompt = (*held, *STEMS[stem % len(STEMS)][len(held) : end])[: CONTEXT - len(tail)] + tuple(tail)
        if self.engine.scheduler.uses(sequence):
            with pytest.raises(RequestError, match="still answering"):
                self.engine.add(Request(prompt, sequence=sequence))
        else:
            self._add(Wish(prompt, **manner), sequence=sequence, **service)
            while finishes and self.engine.scheduler.uses(sequence):
                self._step()

    @precondition(lambda self: self.sequences and len(self.sequences) < MAX_SEQUENCES)
    @rule(which=wholes, is_interrupted=st.integers(0, 3).map(lambda number: not number))
    def fork(self, which: int, is_interrupted: bool) -> None:
        """Fork a sequence; with overlap that waits for the step in flight, and may be interrupted."""
        source = self.sequences[which % len(self.sequences)]
        self.runner.fail = "after" if is_interrupted else None
        try:
            child = self.engine.fork(source)
        except KeyboardInterrupt:
            return
        finally:
            self.runner.fail = None
        assert child.tokens == source.tokens
        self.sequences.append(child)

    @precondition(lambda self: self.sequences)
    @rule(which=wholes)
    def drop(self, which: int) -> None:
        sequence = self.sequences[which % len(self.sequences)]
        if sequence.is_in_use:
            with pytest.raises(RequestError, match="cancel it first"):
                self.engine.drop(sequence)
        elif not self.engine.scheduler.uses(sequence):
            self.engine.drop(sequence)
            self.sequences.remove(sequence)
            with pytest.raises(RequestError, match="was closed"):
                self.engine.add(Request([1], sequence=sequence))

    @rule(pages=st.integers(1, 14))
    def evict(self, pages: int) -> None:
        obtainable = self.engine.kv_cache.num_obtainable_pages()
        assert self.engine.kv_cache.free_pages(pages) == (pages <= obtainable)

    @precondition(lambda self: self.sequences and len(self.files) < MAX_FILES)
    @rule(which=wholes, closes=st.booleans())
    def sleep(self, which: int, closes: bool) -> None:
        sequence = self.sequences[which % len(self.sequences)]
        self.count += 1
        path = Path(self.folder.name) / f"{self.count}.session"
        if sequence.is_in_use:
            with pytest.raises(RequestError, match="still uses this sequence"):
                self.engine.save_session(sequence, path, "model", {})
            return
        held = list(sequence.tokens)
        if self.asleep is not None and len(slept := self.asleep.tokens_of(sequence)) > len(held):
            held = list(slept)
        self.engine.save_session(sequence, path, "model", {"count": self.count})
        self.files.append((path, held))
        if closes and not self.engine.scheduler.uses(sequence):
            self.engine.drop(sequence)
            self.sequences.remove(sequence)

    @precondition(lambda self: self.files and len(self.sequences) < MAX_SEQUENCES)
    @rule(which=wholes, cache_salt=cache_salts, removes=st.booleans())
    def wake(self, which: int, cache_salt: str, removes: bool) -> None:
        path, held = self.files[which % len(self.files)]
        store = self.engine.kv_cache
        obtainable, before = store.num_obtainable_pages(), len(store.sequences)
        stateless = store.states is not None and not store.num_obtainable_states()
        try:
            sequence, notes = self.engine.load_session(path, "model", cache_salt)
        except MemoryShortage:
            assert -(-len(held) // PAGE) > obtainable or stateless
            assert len(self.engine.kv_cache.sequences) == before
            return
        assert sequence.tokens == held
        assert f"{notes['count']}.session" == path.name
        self.sequences.append(sequence)
        if removes:
            self.files.remove((path, held))
            path.unlink()

    @precondition(lambda self: self.overlapped)
    @rule(count=st.sampled_from([1, 2, 3, 5, 100]))
    def run_device(self, count: int) -> None:
        """The device gets on with what was launched."""
        self.runner.device.queue.run_some(count)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    @precondition(lambda self: self.wishes)
    @rule(which=wholes)
    def cancel(self, which: int) -> None:
        request = list(self.wishes.values())[which % len(self.wishes)][0]
        self.engine.cancel(request)
        assert request.finish_reason == "cancelled"

    @precondition(lambda self: len(self.texts) < MAX_TEXTS)
    @rule(stem=wholes, length=lengths, output=st.sampled_from(["logits", "hidden"]), service=services)
    def add_text(self, stem: int, length: int, output: Any, service: Any) -> None:
        """Scores of a text, or vectors of its positions."""
        ids, rows = STEMS[stem % len(STEMS)][:length], list[NDArray[np.float32]]()
        request = Request(ids, output=output, on_rows=lambda chunk: rows.append(chunk.copy()), **service)
        self.engine.add(request)
        self.texts[request.id] = request, rows

    @precondition(lambda self: self.texts)
    @rule(which=wholes)
    def cancel_text(self, which: int) -> None:
        request, _ = list(self.texts.values())[which % len(self.texts)]
        self.engine.cancel(request)
        assert request.finish_reason == "cancelled"

    def _check_texts(self) -> None:
        """Each row came once, and is that of the text alone."""
        for number, (request, rows) in list(self.texts.items()):
            found = np.concatenate(rows) if rows else []
            assert len(found) == request.num_delivered
            if request.finish_reason is None:
                assert len(found) < request.num_prompt
                continue
            del self.texts[number]
            assert request.finish_reason == "cancelled" or len(found) == request.num_prompt
            for place in {0, len(found) // 2, len(found) - 1} if rows and number not in self.runner.poisoned else ():
                assert (found[place] == scores_after(cells_of(request.prompt[: place + 1]))).all()

    @precondition(lambda self: not self.engine.scheduler.is_idle)
    @rule(when=st.sampled_from(["before", "copying", "after", "sampled"]))
    def interrupt(self, when: str) -> None:
        """A step is interrupted, as by Ctrl-C: the next ones go on."""
        self.runner.fail = when
        for _ in range(8):
            try:
                self._step()
            except KeyboardInterrupt:
                break
        self.runner.fail = None

    @precondition(lambda self: not self.engine.scheduler.is_idle and not self.texts)
    @rule(when=st.sampled_from(["before", "copying", "after", "sampled"]))
    def run_out_of_memory(self, when: str) -> None:
        """The device has too little memory for a step, for its sampling or for its results: no request ends."""
        if when == "sampled" and not self.overlapped:
            return  # the host has changed the states of requests then
        self.runner.fail, self.runner.failure = when, MemoryShortage
        for _ in range(8):
            with suppress(MemoryShortage):  # of a step of one token
                self._step()
        self.runner.fail, self.runner.failure = None, KeyboardInterrupt
        self.engine.scheduler.token_budget = self.engine.limits.token_budget

    @precondition(lambda self: self.wishes and self.runner.poison is None)
    @rule(row=wholes)
    def poison(self, row: int) -> None:
        """Logits of one row will not be numbers: that request fails, the others do not feel it."""
        self.runner.poison = row
        self._step()
        self.runner.poison = None

    @rule(what=st.sampled_from(["long", "unknown", "negative", "queue"]))
    def refuse(self, what: str) -> None:
        prompt = {"long": STEMS[0][: CONTEXT + 1], "unknown": [1, VOCAB], "negative": [-1], "queue": [1, 2]}[what]
        errors: type[Exception] = ContextOverflow if what == "long" else RequestError
        waiting = self.engine.scheduler.waiting
        if what == "queue":
            limit, waiting.limit, errors = waiting.limit, 0, QueueFull
        try:
            refused = Request(prompt, sampling=SAMPLINGS[2])
            with pytest.raises(errors):
                self.engine.add(refused)
            self.engine.cancel(refused)
            assert refused.finish_reason is None
        finally:
            if what == "queue":
                waiting.limit = limit

    def _add(self, wish: Wish, **service: Any) -> Request | None:
        constraint = wish.constraint()
        request = Request(
            wish.prompt, sampling=wish.sampling, max_tokens=wish.max_tokens, stop_ids=wish.stop_ids,
            constraint=constraint, roll=wish.roll, **service,
        )  # fmt: skip
        waiting = self.engine.scheduler.waiting
        others = sum(each.tenant != request.tenant for each in waiting)
        try:
            self.engine.add(request)
        except QueueFull:
            assert len(waiting) >= waiting.limit
            return None
        # Preempted requests wait too; beyond the limit only tenants that have not filled the queue alone.
        assert len(waiting) <= waiting.limit or others
        self.wishes[request.id] = request, wish
        self.output_ids[request.id] = list(request.all_token_ids)
        return request

    def _step(self) -> None:
        for advance in self.engine.step():
            assert advance.request.output == "tokens" or advance.token is None
            if advance.token is not None:
                self.output_ids[advance.request.id].append(advance.token)
        for number, (request, _) in self.wishes.items():
            assert request.all_token_ids == self.output_ids[number], "what a step told is what it did"

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "engine"):
            self._check_ended()
            self._check_texts()
            self._check_pages()
            self._check_memory()

    def _check_ended(self) -> None:
        """Requests have said what they would say alone."""
        for number, (request, wish) in list(self.wishes.items()):
            if request.finish_reason is None:
                continue
            del self.wishes[number]
            expected = expected_output(wish, CONTEXT)
            place = f"{request} of {wish}"
            if request.finish_reason == "cancelled" or (request.error or "").startswith("logits are not numbers"):
                assert request.generated == expected.tokens[: request.num_generated], place
                assert request.finish_reason == "cancelled" or number in self.runner.poisoned, place
                continue
            assert request.generated == expected.tokens, place
            assert request.finish_reason == expected.finish_reason, place
            if self.overlapped:  # the device computes in float32
                assert_close_logprobs(request.logprobs, expected.logprobs)
            else:
                assert request.logprobs == expected.logprobs, place

    def _check_pages(self) -> None:
        """Pages are accounted for, and hold what is said of them."""
        engine, cells = self.engine, self.runner.cells.reshape(-1, PAGE)
        engine.check_integrity()
        if self.overlapped and self.runner.device.queue.waiting:
            return  # pages may still be copied
        if isinstance(self.runner, StatefulRunner):
            self._check_states(self.runner)
            if not self.runner.paged:
                return
        if engine.speculation is not None and isinstance(engine.speculation.drafter, ModelDrafter):
            engine.speculation.drafter.check_integrity()
        for sequence in engine.kv_cache.sequences.values():
            held = cells[sequence.pages].reshape(-1)[: sequence.length]
            assert (held == cells_of(sequence.tokens)).all(), sequence
            assert sequence.page_table == tuple(sequence.pages)
        roots = {root_hash(cache_salt) for cache_salt in SALTS}
        index = engine.kv_cache.prefix_cache
        for parent, children in index.children.items():
            if parent in roots or parent in index.page_of_hash:
                before = 0 if parent in roots else int(cells[index.page_of_hash[parent]][-1])
                depth = depth_of(parent, index)
                for key, tokens in children.items():
                    assert (
                        depth is None
                        or (cells[index.page_of_hash[key]] == cells_of(tokens, before, depth * PAGE)).all()
                    )

    def _check_states(self, runner: StatefulRunner) -> None:
        """States are those of the texts that are said to have led to them."""
        store, index = self.engine.kv_cache, self.engine.kv_cache.prefix_cache
        assert not store.has_state_copies or self.engine.scheduler.running
        written = {each.state_slot for each in self.engine.scheduler.in_flight.values()}
        for sequence in store.sequences.values():
            assert sequence.draft_base_slot == NO_STATE
            if sequence.tokens and sequence.state_slot not in written:
                assert (runner.states[sequence.state_slot] == state_of(sequence.tokens)).all(), sequence
        for key, state in store.states.slot_of_hash.items():
            pages = list[int]()
            while key in index.parents:
                pages[:0] = index.children[index.parents[key]][key]
                key = index.parents[key]
            if key in {root_hash(cache_salt) for cache_salt in SALTS}:
                assert (runner.states[state] == state_of(pages)).all()

    def _check_memory(self) -> None:
        """Only what lives is remembered."""
        engine = self.engine
        running, waiting = engine.scheduler.running, {request.id for request in engine.scheduler.waiting}
        assert len(running) <= engine.limits.max_batch
        assert running.keys() | waiting == self.wishes.keys() | self.texts.keys()
        assert not running.keys() & waiting
        assert engine.sampler.states.keys() <= self.wishes.keys()
        assert sum(engine.scheduler.num_running_by_tenant.values()) == len(running)
        assert engine.speculation is None or engine.speculation.backoffs.keys() <= self.wishes.keys()
        temporary = sum(request.is_temporary for request in running.values())
        assert len(engine.kv_cache.sequences) == len(self.sequences) + temporary
        assert engine.scheduler.num_running_hidden == sum(request.output == "hidden" for request in running.values())
        for sequence in engine.kv_cache.sequences.values():
            assert sequence.is_in_use == any(request.sequence is sequence for request in running.values())

    def teardown(self) -> None:
        try:
            if hasattr(self, "engine"):
                self._drain()
        finally:
            self.folder.cleanup()

    def _drain(self) -> None:
        """All requests end, and all pages are free at last."""
        for _ in range(PATIENCE):
            if self.engine.scheduler.is_idle:
                break
            self._step()
        assert self.engine.scheduler.is_idle, "requests are stuck"
        self.all_is_well()
        assert not self.wishes
        assert not self.texts
        for sequence in self.sequences:
            self.engine.drop(sequence)
        self.engine.check_integrity()
        assert self.engine.kv_cache.pages.num_free == self.engine.limits.num_pages
        if self.engine.kv_cache.states is not None:
            assert self.engine.kv_cache.states.num_free == self.engine.limits.num_states
        assert not self.engine.scheduler.num_running_by_tenant
        assert not self.engine.sampler.states
        if self.asleep is not None:
            assert not list(self.asleep.folder.iterdir())
            assert self.asleep.last_loss is None or "more than session_bytes" in self.asleep.last_loss
            self.engine.close()


class StatefulMachine(EngineMachine):
    """The same with a model that keeps recurrent states, in pools too small for them."""

    stateful = True


class OverlappedMachine(EngineMachine):
    """The same on a device that runs by itself: steps are launched before the ones before are committed."""

    overlapped = True


class OverlappedStatefulMachine(EngineMachine):
    """The same with recurrent states."""

    stateful = overlapped = True


def assert_close_logprobs(found: Sequence[TokenLogprobs], expected: Sequence[TokenLogprobs]) -> None:
    """Compare log probabilities that were computed in float32."""
    assert len(found) == len(expected)
    for each, other in zip(found, expected, strict=True):
        assert each.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert list(each.top.values()) == pytest.approx(list(other.top.values()), abs=1e-4)


def machine_run(examples: int, steps: int, machine: type[EngineMachine] = EngineMachine) -> Callable[[], None]:
    """Return a test of `examples` machines of `steps` steps, the same ones in every run."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    return lambda: run_state_machine_as_test(machine, settings=chosen)


def test_anything_in_any_order() -> None:
    machine_run(15, 40)()


def test_anything_in_any_order_with_states() -> None:
    machine_run(8, 40, StatefulMachine)()


def test_anything_in_any_order_with_overlap() -> None:
    machine_run(10, 40, OverlappedMachine)()


def test_anything_in_any_order_with_overlap_and_states() -> None:
    machine_run(8, 40, OverlappedStatefulMachine)()


@pytest.mark.all
@pytest.mark.parametrize("machine", [EngineMachine, StatefulMachine, OverlappedMachine, OverlappedStatefulMachine])
def test_twenty_thousand_steps(machine: type[EngineMachine]) -> None:
    machine_run(400, 50, machine)()
