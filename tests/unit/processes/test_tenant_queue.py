"""A queue that serves tenants in turns."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.processes.tenant_queue import TenantQueue


def test_tenants_take_turns() -> None:
    queue: TenantQueue[str] = TenantQueue()
    for item in ("a1", "a2", "a3", "b1"):
        queue.push(item, item[0])
    assert queue.pop() == "a1"
    queue.push("c1", "c")
    assert [queue.pop() for _ in range(len(queue))] == ["b1", "c1", "a2", "a3"]
    with pytest.raises(IndexError):
        queue.pop()


def test_a_new_tenant_waits_for_one_item_of_another_and_does_not_come_first_for_ever() -> None:
    queue: TenantQueue[str] = TenantQueue()
    for item in ("a1", "a2", "a3"):
        queue.push(item, "a")
    assert queue.pop() == "a1"
    popped = []
    for number in range(1, 4):  # b comes again as soon as it was served
        queue.push(f"b{number}", "b")
        popped += [queue.pop(), queue.pop()] if number < 3 else [queue.pop()]
    assert popped == ["b1", "a2", "b2", "a3", "b3"]


def test_the_longest_queue_makes_room() -> None:
    queue: TenantQueue[str] = TenantQueue()
    assert queue.evict_for("a") is None
    for item in ("a1", "a2", "b1"):
        queue.push(item, item[0])
    assert queue.evict_for("a") is None
    assert queue.evict_for("b") is None, "afterwards b would have more"
    assert queue.evict_for("c") == "a2"
    assert queue.evict_for("c") is None
    assert queue.clear() == ["a1", "b1"]
    assert len(queue) == 0


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(0, 30))
def test_no_item_is_lost_and_each_tenant_keeps_its_order(tenants: list[str], num_pops: int) -> None:
    queue: TenantQueue[tuple[str, int]] = TenantQueue()
    counts: Counter[str] = Counter()
    expected = []
    for tenant in tenants:
        queue.push((tenant, counts[tenant]), tenant)
        expected.append((tenant, counts[tenant]))
        counts[tenant] += 1
    popped = [queue.pop() for _ in range(min(num_pops, len(queue)))]
    popped += queue.clear()
    assert sorted(popped) == sorted(expected)
    for tenant in counts:
        numbers = [number for name, number in popped if name == tenant]
        assert numbers == sorted(numbers)
