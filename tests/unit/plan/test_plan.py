"""Plans: the bucket a step falls into, memory by bucket, and clear errors for steps that do not fit."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import GraphError, OpError
from sporelm.ops import Graph, Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.plan.plan import find_lifetimes
from sporelm.quant import F32 as FORMAT
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32, I32

WIDTH = 16
SPECS = {"x": Spec((Symbol("tokens", 20), WIDTH), F32), "rows": Spec((Symbol("rows", 6),), I32)}


class StepBuckets(ReferenceBackend):
    """The reference with three step buckets, real sizes, and a list of the programs requested."""

    step_buckets: Mapping[str, int] = {"one": 1, "few": 4, "many": 16}

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, Graph, Any]] = []

    def value_bytes(self, spec: Spec) -> int:
        return int(np.prod(spec.bound)) * spec.dtype.nbytes

    def program(self, graph: Graph, bucket: str, place: Any) -> Any:
        self.requests.append((bucket, graph, place(self.value_bytes, {"add"})))
        return super().program(graph, bucket, place)


def twice_and_more(x: Any, rows: Any) -> dict[str, Any]:
    total = ops.add(x, x)
    for _ in range(6):
        total = ops.add(total, x)
    return {"y": ops.select_rows(total, rows)}


@pytest.fixture
def plan() -> Plan:
    return Plan(trace(twice_and_more, SPECS), StepBuckets())


def step(plan: Plan, tokens: int, rows: int) -> dict[str, np.ndarray]:
    x = np.arange(tokens * WIDTH, dtype=np.float32).reshape(tokens, WIDTH)
    return plan.run({"x": x, "rows": np.arange(rows, dtype=np.int32)}, {"tokens": tokens, "rows": rows})


@pytest.mark.parametrize(
    ("tokens", "rows", "bucket"),
    [(1, 1, "one"), (2, 1, "few"), (4, 4, "few"), (5, 1, "many"), (16, 6, "many"), (1, 2, "few")],
)
def test_the_smallest_step_bucket_that_holds_the_step_is_taken(plan: Plan, tokens: int, rows: int, bucket: str) -> None:
    assert plan.find_bucket({"tokens": tokens, "rows": rows}) == bucket


def test_one_program_per_step_bucket(plan: Plan) -> None:
    for tokens in (1, 1, 3, 4, 2, 9, 16, 1):
        assert (step(plan, tokens, 1)["y"] == np.arange(WIDTH) * 8).all()
    assert [bucket for bucket, _, _ in plan.backend.requests] == ["one", "few", "many"]  # type: ignore[attr-defined]
    assert plan.num_programs == 3


def test_symbols_are_bounded_by_the_step_bucket(plan: Plan) -> None:
    plan.prepare()
    highs = {bucket: {e.high for value in graph.inputs.values() for e in value.shape if isinstance(e, Symbol)}
             for bucket, graph, _ in plan.backend.requests}  # type: ignore[attr-defined]  # fmt: skip
    assert highs == {"one": {1}, "few": {4}, "many": {16, 6}}
    sizes = plan.arena_bytes
    assert sizes["one"] < sizes["few"] < sizes["many"]


def test_arena_is_smaller_than_all_values(plan: Plan) -> None:
    """A chain of products holds two values at once, however long it is."""
    square = plan.backend.pack(StoredTensor("w", FORMAT, (WIDTH, WIDTH), np.zeros(WIDTH * WIDTH * 4, np.uint8)))

    def chain(x: Any) -> dict[str, Any]:
        for _ in range(20):
            x = ops.linear(x, square)
        return {"y": x}

    plan = Plan(trace(chain, {"x": SPECS["x"]}), StepBuckets())
    plan.prepare(["many"])
    assert plan.arena_bytes["many"] == 2 * 16 * WIDTH * 4
    assert plan.num_programs == 1


def test_placement_names_every_value(plan: Plan) -> None:
    plan.prepare(["few"])
    ((_, graph, placement),) = plan.backend.requests  # type: ignore[attr-defined]
    values = [*graph.inputs.values(), *(value for call in graph.calls for value in call.results)]
    assert placement.offsets.keys() == {id(value) for value in values}


def test_prepare_reports(plan: Plan) -> None:
    seen: list[tuple[str, int, int]] = []
    plan.prepare(progress=lambda phase, done, total: seen.append((phase, done, total)))
    assert seen == [("compile", 0, 3), ("compile", 1, 3), ("compile", 2, 3), ("compile", 3, 3)]


def test_describe_says_what_is_there(plan: Plan) -> None:
    plan.prepare(["one"])
    text = plan.describe()
    for part in (
        "8 calls on reference",
        "7 add",
        "1 select_rows",
        "tokens<=20",
        "one (up to 1 tokens): arena",
        "not made",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("tokens", "rows", "message"),
    [
        (17, 1, "17 tokens is more than the 16"),
        (21, 1, "tokens is 21; the plan takes 1 to 20"),
        (0, 1, "tokens is 0"),
        (-3, 1, "tokens is -3"),
        (3, 7, "rows is 7; the plan takes 0 to 6"),
    ],
)
def test_step_that_does_not_fit(plan: Plan, tokens: int, rows: int, message: str) -> None:
    with pytest.raises(OpError, match=message):
        plan.find_bucket({"tokens": tokens, "rows": rows})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((3, WIDTH), np.float32)}, r"input x must be f32\[2, 16\], got float32\[3, 16\]"),
        ({"x": np.zeros((2, WIDTH))}, r"input x must be f32\[2, 16\], got float64\[2, 16\]"),
        ({"rows": np.zeros(1, np.int64)}, r"input rows must be i32\[1\], got int64\[1\]"),
        ({"y": np.zeros(1, np.int32)}, r"arrays must be given for \['rows', 'x'\], got \['rows', 'x', 'y'\]"),
    ],
)
def test_arrays_that_do_not_fit(plan: Plan, change: dict[str, np.ndarray], message: str) -> None:
    arrays = {"x": np.zeros((2, WIDTH), np.float32), "rows": np.zeros(1, np.int32)} | change
    with pytest.raises(OpError, match=message):
        plan.run(arrays, {"tokens": 2, "rows": 1})


def test_extents_that_change_in_place_are_seen(plan: Plan) -> None:
    """The same two mappings again, one of them for more tokens than the bucket holds: checked, not run."""
    arrays = {"x": np.ones((1, WIDTH), np.float32), "rows": np.zeros(1, np.int32)}
    extents = {"tokens": 1, "rows": 1}
    for _ in range(2):
        assert plan.run(arrays, extents)["y"].shape == (1, WIDTH)
    extents["tokens"] = 16
    with pytest.raises(OpError, match=r"input x must be f32\[16, 16\], got float32\[1, 16\]"):
        plan.run(arrays, extents)
    arrays["x"] = np.ones((16, WIDTH), np.float32)
    plan.run(arrays, extents)
    assert list(plan.bucket_programs) == ["one", "many"]


def test_a_closed_plan_compiles_its_programs_again(plan: Plan) -> None:
    step(plan, 1, 1)
    plan.close()
    assert plan.num_programs == 0
    assert (step(plan, 1, 1)["y"] == np.arange(WIDTH) * 8).all()


def test_only_what_the_back_end_runs_without_a_barrier_lives_longer() -> None:
    graph = trace(twice_and_more, SPECS)
    series, apart = (find_lifetimes(graph, names) for names in ({"add"}, ()))
    assert [last for _, _, last in series.values()][2:5] == [6, 6, 6]
    assert [last for _, _, last in apart.values()][2:5] == [1, 2, 3]


def test_extents_must_be_all_there(plan: Plan) -> None:
    with pytest.raises(OpError, match=r"extents must be given for \['rows', 'tokens'\], got \['tokens'\]"):
        plan.run({}, {"tokens": 2})


def test_an_unknown_step_bucket_is_an_error(plan: Plan) -> None:
    with pytest.raises(OpError, match="no bucket 'some'; it has one, few, many"):
        plan.prepare(["some"])


def test_one_bound_per_symbol() -> None:
    specs = {"x": Spec((Symbol("tokens", 4), 2), F32), "y": Spec((Symbol("tokens", 5), 2), F32)}
    with pytest.raises(OpError, match="symbol tokens is bounded by 5 and 4"):
        Plan(trace(lambda x, y: {"x": ops.add(x, x), "y": ops.add(y, y)}, specs), StepBuckets())


def test_illegal_graph_is_refused() -> None:
    graph = trace(twice_and_more, SPECS)
    graph.calls.pop(0)
    with pytest.raises(GraphError, match="before it is defined"):
        Plan(graph, StepBuckets())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=20))
def test_results_never_share_with_arguments_still_in_use(steps: list[tuple[bool, int, int]]) -> None:
    """Random graphs of adds and row selections: within a series of adds, which may overlap, nothing is used again."""

    def function(x: Any, rows: Any) -> dict[str, Any]:
        values = [x]
        for adding, left, right in steps:
            one, other = values[left % len(values)], values[right % len(values)]
            values.append(ops.add(one, other) if adding else ops.select_rows(one, rows))
        return {"y": values[-1]}

    backend = StepBuckets()
    specs = {"x": Spec((Symbol("tokens", 4), WIDTH), F32), "rows": Spec((Symbol("tokens", 4),), I32)}
    Plan(trace(function, specs), backend).prepare(["few"])
    ((_, graph, placement),) = backend.requests
    for number, call in enumerate(graph.calls):
        busy, before = list(call.values()), number
        while call.op is ops.add and before and graph.calls[before - 1].op is ops.add:
            before -= 1
            busy += graph.calls[before].values()
        places = {placement.offsets[id(value)] for value in busy}
        assert placement.offsets[id(call.results[0])] not in places


def test_outputs_live_to_the_end_and_values_no_longer_than_needed() -> None:
    def function(x: Any, rows: Any) -> dict[str, Any]:
        kept = ops.select_rows(x, rows)
        gone = ops.select_rows(kept, rows)
        ops.select_rows(gone, rows)
        return {"kept": kept}

    graph = trace(function, SPECS)
    lives = {value.name: (first, last) for value, first, last in find_lifetimes(graph).values()}
    assert lives == {"x": (-1, 0), "rows": (-1, 2), "0.0": (0, 3), "1.0": (1, 2), "2.0": (2, 2)}
