"""The order of requests: streams that do not stall, urgency, fairness, a bounded queue, child requests."""

import pytest

from sporelm.engine import Request
from sporelm.engine.prefill_budget import INITIAL_TOKENS, MAX_STALL, MIN_TOKENS, UNNOTICED_SECONDS, PrefillBudget
from sporelm.errors import QueueFull, RequestError
from unit.engine.fake import engine, expected, limits
from unit.engine.test_engine import prompt


def test_requests_that_decode_have_a_token_in_every_step_while_prompts_are_computed():
    made = engine(token_budget=40, prefill_tokens=16)
    early = made.add(Request(prompt(10), max_tokens=60))
    made.step()
    late = [made.add(Request(prompt(200, seed), max_tokens=2)) for seed in (1, 2)]
    while any(request.finish_reason is None for request in late):
        made.step()
        if early.finish_reason is None:
            step = made.runner.steps[-1]
            assert early.id in [scheduled.request_id for scheduled in step.sequences]
            assert sum(len(scheduled.tokens) for scheduled in step.sequences if len(scheduled.tokens) > 1) <= 16
    made.run([early])
    assert early.generated == expected(prompt(10), 60)


def test_prompts_alone_take_the_whole_step():
    made = engine(token_budget=40, prefill_tokens=16)
    made.add(Request(prompt(100), max_tokens=2))
    made.step()
    assert made.runner.steps[-1].num_tokens == 40


def measured_budget(step_seconds: float, token_seconds: float) -> PrefillBudget:
    """A pace that has learnt from steps which take so long, and so much more a token."""
    budget = PrefillBudget()
    for _ in range(200):
        budget.observe(4, 0, step_seconds + 4 * token_seconds)
        budget.observe(4, 100, step_seconds + 104 * token_seconds)
    return budget


def test_the_pace_lets_prompts_take_so_long_as_it_is_told():
    assert PrefillBudget().num_allowed() == INITIAL_TOKENS
    assert PrefillBudget(7).num_allowed(4, 12) == 7
    budget = measured_budget(0.010, 0.0002)
    for decoding in (1, 4, 40):
        wanted = MAX_STALL * (0.010 + decoding * 0.0002) / 0.0002
        assert budget.num_allowed(decoding) == pytest.approx(wanted, rel=0.03)
        assert budget.num_allowed(decoding, 1 if decoding > 4 else 0) == budget.num_allowed(decoding)
    assert measured_budget(0.001, 0.01).num_allowed() == MIN_TOKENS


def test_a_crowd_that_begins_may_make_an_unnoticed_pause():
    budget = measured_budget(0.002, 0.0002)
    assert budget.num_allowed(8, 1) < 30
    assert budget.num_allowed(8, 2) == pytest.approx(UNNOTICED_SECONDS / 0.0002, rel=0.03)
    slow = measured_budget(0.2, 0.02)  # a large model: what others bear counts there
    assert slow.num_allowed(8, 8) == slow.num_allowed(8)


def test_urgent_requests_are_served_first():
    made = engine(max_batch=1)
    requests = [made.add(Request(prompt(5, seed), max_tokens=3, priority=-seed)) for seed in range(3)]
    ended = []
    while not made.scheduler.is_idle:
        ended += [advance.request for advance in made.step() if advance.finish_reason]
    assert ended == [requests[2], requests[1], requests[0]]


def test_of_equals_the_tenant_with_the_fewest_running_is_served():
    made = engine(max_batch=2)
    many = [made.add(Request(prompt(5, seed), max_tokens=4, tenant="busy")) for seed in range(5)]
    one = made.add(Request(prompt(6), max_tokens=4, tenant="rare"))
    made.step()
    assert set(made.scheduler.running.values()) == {many[0], one}
    made.run([*many, one])
    assert not made.scheduler.num_running_by_tenant
    assert not made.scheduler.waiting.queues


def test_what_is_urgent_keeps_its_pages():
    made = engine(num_pages=5, max_context=256, max_batch=3)
    calm = [made.add(Request(prompt(60, seed), max_tokens=60, priority=1)) for seed in range(2)]
    for _ in range(4):
        made.step()
    urgent = made.add(Request(prompt(60, 9), max_tokens=150))
    started = False
    while urgent.finish_reason is None:
        made.step()
        assert not started or urgent.finish_reason or urgent.id in made.scheduler.running
        started = started or urgent.id in made.scheduler.running
    made.run(calm)
    for request in (*calm, urgent):
        assert request.generated == expected(request.prompt, request.max_tokens)


def test_the_queue_is_bounded():
    made = engine(max_batch=1, max_waiting=2)
    first = [made.add(Request(prompt(3, seed), max_tokens=2)) for seed in range(2)]
    refused = Request(prompt(4), max_tokens=2)
    with pytest.raises(QueueFull, match="2 requests wait already"):
        made.add(refused)
    made.step()
    made.add(refused)
    made.run([*first, refused])
    assert refused.finish_reason == "length"
    assert not made.sampler.states
    with pytest.raises(RequestError, match="max_waiting is 0"):
        limits(max_waiting=0)
    with pytest.raises(RequestError, match="prefill_tokens is 0"):
        limits(prefill_tokens=0)


def test_who_waits_can_be_asked_while_others_come_and_go():
    made = engine(max_batch=1, max_waiting=6)
    for tenant in ("anna", "anna", "ben"):
        made.add(Request(prompt(3), max_tokens=2, tenant=tenant))
    asking = iter(made.scheduler.waiting)
    first = next(asking)
    made.cancel(first)
    made.add(Request(prompt(3), max_tokens=2, tenant="cleo"))
    assert [request.tenant for request in (first, *asking)] == ["anna", "anna", "ben"]


def test_no_tenant_fills_the_queue_for_the_others():
    made = engine(max_batch=1, max_waiting=6)

    def fill_queue(tenant: str) -> int:
        count = 0
        while True:
            try:
                made.add(Request(prompt(3), max_tokens=2, tenant=tenant))
            except QueueFull:
                return count
            count += 1

    assert fill_queue("anna") == 6
    assert fill_queue("ben") == 3
    assert fill_queue("cleo") == 2
    assert fill_queue("dora") == 1  # twice the limit: no other tenant finds a place
    assert fill_queue("emil") == 0
    assert fill_queue("anna") == 0


def test_children_share_what_their_parent_computes():
    made = engine(max_batch=4, token_budget=40)
    ids = prompt(100)
    first = made.add(Request(ids, max_tokens=20))
    others = [made.add(Request(ids, max_tokens=20, parent=first)) for _ in range(3)]
    made.run([first, *others])
    for request in (first, *others):
        assert request.generated == expected(ids, 20)
    assert [request.cached_tokens for request in others] == [99, 99, 99]
    computed = sum(step.num_tokens for step in made.runner.steps)
    assert computed == 100 + 3 + 4 * 19
    made.check_integrity()


def test_a_parent_that_was_cancelled_leaves_its_child_alone():
    made = engine(token_budget=16)
    ids = prompt(100)
    first = made.add(Request(ids, max_tokens=20))
    second = made.add(Request(ids, max_tokens=20, parent=first))
    made.step()
    assert second.id not in made.scheduler.running
    made.cancel(first)
    made.run([second])
    assert second.generated == expected(ids, 20)
    made.check_integrity()
