"""Graphs cut between two parts: where calls run, and what crosses."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from available import open_available
from sporelm import ops
from sporelm.backends.cpu_offload import DEVICE, HOST, CpuOffloadBackend, DeviceMap
from sporelm.backends.protocol import CompositeBackend
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import BackendError
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.plan.partition import PartitionedProgram, place_calls
from sporelm.quant import F32 as F32_FORMAT
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32

WIDTH = 16
TOKENS = Symbol("tokens", 16)
ROWS = np.random.default_rng(0).standard_normal((3, WIDTH), np.float32)


class CountingBackend(ReferenceBackend):
    """The reference, which notes what is copied to it."""

    def __init__(self, threads: int | None = None) -> None:
        super().__init__()
        self.uploaded: list[tuple[int, ...]] = []

    def upload(self, array: np.ndarray) -> Any:
        self.uploaded.append(array.shape)
        return super().upload(array)


@pytest.fixture
def composite() -> Iterator[Any]:
    """Layers 0 and 2 of products are on the host, layer 1 on the device."""
    device: Any = CountingBackend()
    weights = {"0": HOST, "1": DEVICE, "2": HOST, "norm": DEVICE}
    backend = CpuOffloadBackend(device, open_available("cpu", threads=1, shares_arena=True), DeviceMap(weights))
    yield backend
    backend.close()


def matrix(backend: Any, name: str) -> Any:
    values = np.random.default_rng(int(name)).standard_normal((WIDTH, WIDTH), np.float32) / 4
    stored = StoredTensor(name, F32_FORMAT, values.shape, values.view(np.uint8).reshape(-1))
    return backend.backend_of_weight(name).pack(stored)


def reference(names: str, x: np.ndarray) -> np.ndarray:
    for name in names:
        x = x + x @ (np.random.default_rng(int(name)).standard_normal((WIDTH, WIDTH), np.float32) / 4).T
    return x


def test_sums_stay_with_their_layer(composite: Any) -> None:
    weights = [matrix(composite, name) for name in "012"]

    def forward(x: Any) -> dict[str, Any]:
        for weight in weights:
            x = ops.add(x, ops.linear(x, weight))
        return {"y": x}

    graph = trace(forward, {"x": Spec((TOKENS, WIDTH), F32)})
    assert isinstance(composite, CompositeBackend)
    assert place_calls(graph, composite) == [HOST, HOST, DEVICE, DEVICE, HOST, HOST]
    plan = Plan(graph, composite)
    found = plan.run({"x": ROWS}, {"tokens": 3})["y"]
    np.testing.assert_allclose(found, reference("012", ROWS), rtol=1e-5, atol=1e-5)
    assert composite.parts[DEVICE].uploaded == [ROWS.shape], "one value crosses, for the product and the sum"
    program = plan.bucket_programs["few"].program
    assert isinstance(program, PartitionedProgram)
    assert [len(segment.inputs) for segment in program.segments] == [1, 1, 1]
    assert all(segment.ending for segment in program.segments[1:]), "values are dropped after their last use"
    again = plan.run({"x": ROWS}, {"tokens": 3})["y"]
    assert np.array_equal(found, again)
    plan.close()


def test_a_sum_returns_to_the_part_of_the_next_weight(composite: Any) -> None:
    """As with experts on the host: their result crosses, and the residual stream stays where it is."""
    one, zero = matrix(composite, "1"), matrix(composite, "0")
    norm = composite.backend_of_weight("norm").tensor(np.ones(WIDTH, np.float32))

    def forward(x: Any) -> dict[str, Any]:
        stream = ops.linear(x, one)
        routed = ops.activate(ops.linear(ops.rms_norm(stream, norm, eps=1e-5), zero), kind="silu")
        return {"y": ops.linear(ops.add(stream, routed), one)}

    graph = trace(forward, {"x": Spec((TOKENS, WIDTH), F32)})
    assert [call.op.name for call in graph.calls] == ["linear", "rms_norm", "linear", "activate", "add", "linear"]
    assert place_calls(graph, composite) == [DEVICE, DEVICE, HOST, HOST, DEVICE, DEVICE]


def test_inputs_cross_once_for_all_segments(composite: Any) -> None:
    weights = [matrix(composite, name) for name in "101"]

    def forward(x: Any) -> dict[str, Any]:
        y = x
        for weight in weights:
            y = ops.add(x, ops.linear(y, weight))
        return {"y": y}

    plan = Plan(trace(forward, {"x": Spec((TOKENS, WIDTH), F32)}), composite)
    plan.run({"x": ROWS}, {"tokens": 3})
    assert composite.parts[DEVICE].uploaded == [ROWS.shape] * 2, "the input once, and the result of the host"
    plan.close()


def test_a_composite_compiles_nothing_by_itself(composite: Any) -> None:
    graph = trace(lambda x: {"y": ops.activate(x, kind="silu")}, {"x": Spec((TOKENS, WIDTH), F32)})
    assert composite.compile(graph) is None
    with pytest.raises(BackendError, match="a plan compiles the segments"):
        composite.program(graph, "one", None)
    assert Plan(graph, composite).fallback_calls == {}
