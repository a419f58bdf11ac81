"""Ops that a back-end lacks: the reference runs them, eager and planned, and the rest stays the back-end's own."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.cpu import CpuBackend
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import BackendError
from sporelm.ops import ALL, Graph, Op, Spec, Symbol, trace
from sporelm.ops.op import op
from sporelm.ops.spec import spec_of
from sporelm.plan import Plan
from sporelm.plan.split_program import SplitProgram
from sporelm.quant import FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32, I32

WIDTH = 10
X = np.random.default_rng(2).standard_normal((5, WIDTH), np.float32)
SPECS = {"x": Spec((Symbol("tokens", 40), WIDTH), F32)}


@pytest.fixture
def cube() -> Iterator[Op]:
    """An op of the user's own, which no back-end has a kernel for."""

    @op(lambda x, factor=None: spec_of(x))
    def cube(x: Any, factor: Any = None) -> Any:
        return x**3 if factor is None else x**3 * factor

    yield cube
    del ALL["cube"]


@pytest.fixture
def halves() -> Iterator[Op]:
    """An op with two results."""

    def rule(x: Any) -> tuple[Spec, Spec]:
        return spec_of(x), Spec(spec_of(x).shape[:1], I32)

    @op(rule)
    def halves(x: Any) -> Any:
        return x / 2, np.arange(len(x), dtype=np.int32)[::-1]

    yield halves
    del ALL["halves"]


@pytest.fixture(scope="module")
def cpu() -> Iterator[CpuBackend]:
    backend = CpuBackend(threads=2)
    yield backend
    backend.close()


def test_the_cpu_says_what_it_lacks(cpu: CpuBackend, cube: Op) -> None:
    assert "cube" in cpu.missing_kernels()
    assert "add" not in cpu.missing_kernels()


def test_an_op_without_a_kernel_runs_now(cpu: CpuBackend, cube: Op, halves: Op) -> None:
    x = cpu.tensor(X)
    assert np.array_equal(cube(x).numpy(), X**3)
    assert np.array_equal(ops.add(cube(x), x).numpy(), X**3 + X)
    reversed_rows = x.view(x.layout.slice(0, 4, -1, 5))
    assert np.array_equal(cube(reversed_rows, x).numpy(), X[::-1] ** 3 * X)
    half, order = halves(x)
    assert np.array_equal(half.numpy(), X / 2)
    assert np.array_equal(ops.select_rows(x, order).numpy(), X[::-1])


@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_a_plan_has_gaps_between_segments(cpu: CpuBackend, cube: Op, halves: Op, tokens: int) -> None:
    """Native, gap, native, two gaps; values that skip a part, an input that is an output, one of two results unused."""
    factor = cpu.tensor(np.array(2, np.float32).reshape(1, 1))
    weight = cpu.tensor(np.ones(WIDTH, np.float32))

    def function(x: Any) -> dict[str, Any]:
        twice = ops.add(x, x)
        cubed = cube(twice, factor)
        normed = ops.rms_norm(ops.add(cubed, twice), weight, eps=1e-5)
        half, order = halves(normed)
        return {"y": cube(half), "twice": twice, "x": x, "picked": ops.select_rows(normed, order), "cubed": cubed}

    plan = Plan(trace(function, SPECS), cpu)
    assert plan.fallback_calls == {"cube": 2, "halves": 1}
    assert "left to the reference: 2 cube, 1 halves" in plan.describe()
    x = np.random.default_rng(tokens).standard_normal((tokens, WIDTH), np.float32)
    for _ in range(2):
        found = {name: array.copy() for name, array in plan.run({"x": x}, {"tokens": tokens}).items()}
        expected = function(cpu.tensor(x))
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert np.array_equal(found[name], tensor.numpy()), name
    program: Any = plan.bucket_program(plan.find_bucket({"tokens": tokens})).program
    assert isinstance(program, SplitProgram)
    assert [type(part).__name__ for part in program.parts] == [
        "CpuProgram",
        "FallbackSegment",
        "CpuProgram",
        "FallbackSegment",
        "CpuProgram",
    ]
    assert plan.arena_bytes == {plan.find_bucket({"tokens": tokens}): program.nbytes}
    plan.close()
    assert not cpu.context.live


def test_segments_keep_the_order_of_what_is_stored(cpu: CpuBackend, cube: Op) -> None:
    """Keys that come out of a gap are stored before attention reads them in the next segment."""
    results = []
    for backend in (cpu, ReferenceBackend()):
        (cache,) = backend.allocate_pages(1, [(1, WIDTH)], F32)

        def function(x: Any, slots: Any, starts: Any, lengths: Any, pages: Any, cache: Any = cache) -> dict[str, Any]:
            ops.store_kv(x, x, cache, slots)
            ops.store_kv(cube(x), x, cache, slots)
            return {"y": ops.attention(x, cache, starts, lengths, pages, scale=0.5)}

        tokens = Symbol("tokens", 40)
        ints = {"slots": (tokens,), "starts": (2,), "lengths": (1,), "pages": (1, 1)}
        specs = SPECS | {name: Spec(shape, I32) for name, shape in ints.items()}
        plan = Plan(trace(function, specs), backend)
        arrays = {"x": X, "slots": np.arange(5, dtype=np.int32), "starts": np.array([0, 5], np.int32)}
        arrays |= {"lengths": np.array([5], np.int32), "pages": np.zeros((1, 1), np.int32)}
        results.append(plan.run(arrays, {"tokens": 5})["y"].copy())
        plan.close()
        backend.free_pages([cache])
    assert np.abs(results[0] - results[1]).max() <= 1e-5 * np.abs(results[1]).max()


def test_what_the_reference_cannot_read_is_named(cpu: CpuBackend, cube: Op) -> None:
    matrix = np.ones((WIDTH, WIDTH), np.float32)
    form = FORMATS["F32"]
    weight = cpu.pack(StoredTensor("w", form, matrix.shape, quantize_tensor(form, matrix)))
    message = r"cpu has no kernel for cube, and its reference cannot .*: .* Set the option backend to reference"
    with pytest.raises(BackendError, match=message):
        cube(cpu.tensor(X), weight)
    with pytest.raises(BackendError, match=message):
        Plan(trace(lambda x: {"y": cube(x, weight)}, SPECS), cpu).bucket_program("one")
    rounding = {"x": Spec((Symbol("tokens", 4), 32), F32)}
    with pytest.raises(BackendError, match="cannot share rows of int8/32"):
        Plan(trace(lambda x: {"y": cube(ops.quantize_rows(x))}, rounding), cpu).bucket_program("one")


def test_an_op_that_changes_its_argument_needs_a_kernel(cpu: CpuBackend) -> None:
    def spoil(x: Any, state: Any) -> tuple[Any, ...]:
        state[0] = x[0]
        return ()

    spoiling = Op(spoil, lambda x, state: (), ("state",))
    state = cpu.tensor(np.zeros((2, WIDTH), np.float32))
    with pytest.raises(
        BackendError, match=r"no kernel for spoil, .* the op changes a cache or another argument in place"
    ):
        spoiling(cpu.tensor(X), state)
    assert not state.numpy().any()
    reference = ReferenceBackend()
    whole = reference.tensor(np.zeros((2, WIDTH), np.float32))
    spoiling(reference.tensor(X), whole)
    assert np.array_equal(whole.numpy()[0], X[0])
    with pytest.raises(BackendError, match="in place, which is a view"):
        spoiling(reference.tensor(X), whole.view(whole.layout.slice(0, 1, -1, 2)))


class Engine(ReferenceBackend):
    """A back-end that takes whole graphs, if they have no select_rows."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[Graph] = []

    def compile(self, graph: Graph) -> Any:
        if any(call.op is ops.select_rows for call in graph.calls):
            return None
        self.graphs.append(graph)
        return Answer()


class Answer:
    """A program of another engine."""

    def run(self, arrays: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> dict[str, np.ndarray]:
        return {"y": np.array([42.0])}

    def free(self) -> None:
        pass


def test_a_back_end_may_take_the_whole_graph() -> None:
    backend = Engine()
    plan = Plan(trace(lambda x: {"y": ops.add(x, x)}, SPECS), backend)
    assert plan.run({"x": X}, {"tokens": 5})["y"] == 42
    assert [call.op.name for call in backend.graphs[0].calls] == ["add"]
    other = Plan(trace(lambda x, rows: {"y": ops.select_rows(x, rows)}, SPECS | {"rows": Spec((1,), I32)}), backend)
    assert np.array_equal(other.run({"x": X, "rows": np.array([3], np.int32)}, {"tokens": 5})["y"], X[3:4])
    assert len(backend.graphs) == 1
