"""The load that a replica bears, and the machines that users need."""

import pytest

from sporelm.bench.scale.cost_model import CostModel, Efficiency, ParallelLayout
from sporelm.bench.scale.fleet import (
    PRECISION,
    FleetPlan,
    ReplicaCapacity,
    ServiceObjective,
    explain_limit,
    find_capacity,
)
from sporelm.bench.scale.hardware import Link, Machine, Processor
from sporelm.bench.scale.model_size import ModelSize
from sporelm.bench.scale.request_trace import LengthSpread, RequestMix
from sporelm.bench.scale.simulation import Simulation, SimulationResult, make_limits

LINK = Link("test", 1e-5, 1e9)
MACHINE = Machine("test", Processor("test", 16e9, 60e9, {"f32": 2.3e11, "f16": 2.3e11, "int8": 9e11}), 1, LINK, LINK)
MODEL = CostModel(ModelSize.from_shape("llama-1b", "q4_0"), MACHINE, ParallelLayout(), Efficiency())
MIX = RequestMix(LengthSpread(200, 0.5, 16, 800), LengthSpread(30, 0.5, 2, 100))


def capacity(objective: ServiceObjective) -> ReplicaCapacity:
    limits = make_limits(MODEL, max_batch=8, token_budget=512, max_context=1024)
    return find_capacity(
        lambda: Simulation(MODEL, limits), MIX, objective, seconds=40, warmup_seconds=10, start_rate=0.5
    )


def test_the_largest_rate_is_found() -> None:
    objective = ServiceObjective(3.0, 5.0)
    found = capacity(objective)
    assert found.requests_per_second > 0
    assert found.result is not None
    assert not objective.violations(found.result)
    assert objective.violations(found.beyond)
    assert len(found.beyond.requests) <= 1.6 * PRECISION * len(found.result.requests)


def test_a_stricter_objective_bears_less() -> None:
    assert capacity(ServiceObjective(0.7)).requests_per_second < capacity(ServiceObjective(5)).requests_per_second


def test_an_objective_that_no_load_meets() -> None:
    found = capacity(ServiceObjective(10.0, 1e6))
    assert (found.requests_per_second, found.result) == (0.0, None)
    assert found.limit.startswith("answers are slow: ")
    plan = FleetPlan(1000, 100.0, 1, 2.0, found)
    assert plan.num_replicas is plan.num_machines is plan.dollars_per_month is None
    assert plan.to_json()["at_capacity"] is None


@pytest.mark.parametrize(("machines", "count"), [(1.0, 4), (0.5, 2), (4.0, 16)])
def test_machines_and_dollars(machines: float, count: int) -> None:
    result = SimulationResult([])
    plan = FleetPlan(1000, 100.0, machines, 2.0, ReplicaCapacity(2.6, result, result, ""))
    assert (plan.num_replicas, plan.num_machines) == (4, count)
    assert plan.dollars_per_month == count * 2 * 730


def test_the_cause_of_a_limit() -> None:
    result = SimulationResult([], num_steps=100)
    result.part_seconds.update(links=3.0, weights=1.0)
    assert explain_limit(result, ["speed"]) == "answers are slow: 75% of a step is links between ranks"
    result.num_prefill_stalls = 50
    assert explain_limit(result, ["first token"]) == (
        "first tokens are late: prompts wait for the prefill budget, and 75% of a step is links between ranks"
    )
    result.num_batch_stalls = 50
    assert explain_limit(result, ["queue"]) == "the queue grows: max_batch requests run already"
    result.num_page_stalls = 50
    assert explain_limit(result, ["first token"]) == "first tokens are late: KV memory is full"
