"""Sums over ranks that meet on the device, with a stand-in for NCCL's group: two cards are not at hand."""

from typing import Any

import numpy as np
import pytest

from available import open_available
from sporelm import ops
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32


class DoublingGroup:
    """Two ranks with the same values, which are added where they are."""

    rank, size, is_on_device = 0, 2, True

    def all_reduce_in_place(self, values: Any) -> Any:
        return values.add_(values.clone())


@pytest.fixture
def backend() -> Any:
    return open_available("torch", threads=1)


def planned(backend: Any, group: Any) -> Plan:
    def forward(x: Any) -> dict[str, Any]:
        return {"y": ops.add(ops.all_reduce(ops.scale(x, factor=3.0), group=group), x)}

    return Plan(trace(forward, {"x": Spec((Symbol("tokens", 8), 5), F32)}), backend)


def test_a_group_on_the_device_adds_there(backend: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5), np.float32)
    plan = planned(backend, DoublingGroup())
    assert np.allclose(plan.run({"x": x}, {"tokens": 3})["y"], 7 * x)
    assert "all_reduce" not in plan.fallback_calls
    assert np.allclose(ops.all_reduce(backend.tensor(x), group=DoublingGroup()).numpy(), 2 * x)


def test_ranks_that_meet_on_the_host_are_left_to_the_reference(backend: Any) -> None:
    (group,) = SharedMemoryGroup.create(1)
    x = np.ones((2, 5), np.float32)
    plan = planned(backend, group)
    assert plan.fallback_calls == {"all_reduce": 1}
    assert np.array_equal(plan.run({"x": x}, {"tokens": 2})["y"], 4 * x)
    assert np.array_equal(ops.all_reduce(backend.tensor(x), group=group).numpy(), x)
