"""Pages and sequences under random use, and what the pool refuses."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sporelm.engine import Request
from sporelm.engine.kv import KvSequence
from sporelm.engine.kv.page_allocator import PageAllocator
from sporelm.engine.kv.prefix_cache import PrefixCache
from sporelm.errors import BackendError
from unit.engine.fake import VOCAB, Oracle, engine, expected
from unit.engine.hashed import SteadyPrefillBudget, SteadySpeculation


def test_a_pool_hands_out_the_page_freed_last():
    pool = PageAllocator(3, PrefixCache())
    assert [pool.allocate(), pool.allocate()] == [0, 1]
    pool.release([0])
    assert pool.allocate() == 0


def test_shared_pages_stay_until_their_last_holder_releases_them():
    pool = PageAllocator(2, PrefixCache())
    page = pool.allocate()
    pool.share([page])
    pool.release([page])
    assert pool.num_free == 1
    pool.check_integrity([[page]])
    pool.release([page])
    assert pool.num_free == 2


def test_mistakes_are_found():
    pool = PageAllocator(1, PrefixCache())
    for wrong in (pool.release, pool.share):
        with pytest.raises(BackendError, match="page 0 is free"):
            wrong([0])
    page = pool.allocate()
    with pytest.raises(BackendError, match=r"no page is free \(all 1 are held"):
        pool.allocate()
    with pytest.raises(BackendError, match="page 0 has a reference count of 1, but 0 holders"):
        pool.check_integrity([])
    pool.uncached.append(page)
    with pytest.raises(BackendError, match="listed as free"):
        pool.check_integrity([[page]])


def test_a_sequence_finds_the_common_prefix():
    sequence = KvSequence()
    sequence.tokens = [1, 2, 3, 4]
    assert [sequence.match_length(ids) for ids in ([], [2], [1, 2, 9], [1, 2, 3, 4, 5], [1, 2, 3], (1, 2))] == [
        0,
        0,
        2,
        4,
        3,
        2,
    ]


class Use(RuleBasedStateMachine):
    """Adds, steps, cancels, forks, rewinds and drops at random; every answer must be the one of the fake model."""

    def __init__(self) -> None:
        super().__init__()
        guesses = SteadySpeculation(Oracle(5), 16)  # what is drawn must not depend on the clock
        self.engine = engine(guesses, num_pages=9, max_batch=3, max_context=256, token_budget=40)
        self.engine.scheduler.prefill_budget = SteadyPrefillBudget()
        self.requests: list[Request] = []
        self.sequences: list[KvSequence] = []
        self.histories: dict[int, list[int]] = {}

    def free_sequences(self) -> list[KvSequence]:
        held = {request.sequence.id for request in self.requests if request.sequence and not request.finish_reason}
        return [sequence for sequence in self.sequences if sequence.id not in held]

    @rule(
        length=st.integers(1, 200),
        token=st.integers(0, VOCAB - 1) | st.integers(0, 1),  # the latter begin alike
        wanted=st.integers(1, 70),
        cache_salt=st.sampled_from(["", "", "a"]),
        priority=st.integers(0, 1),
        num_children=st.integers(0, 2),
    )
    def add(self, length, token, wanted, cache_salt, priority, num_children):
        ids = [(token + 7 * place) % VOCAB for place in range(length)]
        first = self.engine.add(Request(ids, max_tokens=wanted, cache_salt=cache_salt, priority=priority))
        others = [
            Request(ids, max_tokens=wanted, cache_salt=cache_salt, priority=priority, parent=first)
            for _ in range(num_children)
        ]
        self.requests += [first, *(self.engine.add(other) for other in others)]

    @rule()
    @precondition(lambda self: len(self.sequences) < 4)
    def begin(self):
        self.sequences.append(self.engine.sequence())

    @rule(pick=st.integers(0, 9), keep=st.integers(0, 200), more=st.integers(1, 90), wanted=st.integers(1, 40))
    @precondition(lambda self: self.free_sequences())
    def ask(self, pick, keep, more, wanted):
        sequence = self.free_sequences()[pick % len(self.free_sequences())]
        known = self.histories.get(sequence.id, [])[:keep]
        ids = [*known, *((pick + place) % VOCAB for place in range(more))][:240]
        request = self.engine.add(Request(ids, max_tokens=wanted, sequence=sequence))
        self.histories[sequence.id] = request.context_ids
        self.requests.append(request)

    @rule(pick=st.integers(0, 9))
    @precondition(lambda self: self.sequences and len(self.sequences) < 4)
    def fork(self, pick):
        source = self.sequences[pick % len(self.sequences)]
        child = self.engine.fork(source)
        self.histories[child.id] = list(source.tokens)
        self.sequences.append(child)

    @rule(pick=st.integers(0, 9))
    @precondition(lambda self: self.free_sequences())
    def drop(self, pick):
        sequence = self.free_sequences()[pick % len(self.free_sequences())]
        self.engine.drop(sequence)
        self.sequences.remove(sequence)

    @rule(pick=st.integers(0, 9))
    @precondition(lambda self: self.requests)
    def cancel(self, pick):
        self.engine.cancel(self.requests[pick % len(self.requests)])

    @rule(count=st.integers(1, 30))
    def step(self, count):
        for _ in range(count):
            self.engine.step()

    @invariant()
    def pages_agree(self):
        self.engine.check_integrity()

    @invariant()
    def every_answer_is_right_so_far(self):
        for request in self.requests:
            assert request.generated == expected(request.prompt, request.num_generated)

    def teardown(self):
        self.engine.run([request for request in self.requests if not request.finish_reason])
        self.every_answer_is_right_so_far()
        for sequence in self.sequences:
            self.engine.drop(sequence)
        assert self.engine.kv_cache.pages.num_free == 9


TestUse = Use.TestCase
TestUse.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
