"""Graphs that are cut into stages, run one after the other."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.distributed.stage_split import assign_stages, extract_stage
from sporelm.errors import UnsupportedModel
from sporelm.ops import Graph, Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.quant import Q8_0, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32, I32

TOKENS = Symbol("tokens", 8)
WIDTH = 4


class Queues:
    """Ranks that run one after the other in one thread: a message waits until its receiver runs."""

    is_on_device = False

    def __init__(self, rank: int, size: int, messages: dict[tuple[int, int], deque[np.ndarray]]) -> None:
        self.rank, self.size, self.messages = rank, size, messages

    def all_gather(self, array: np.ndarray, shapes: Any) -> list[np.ndarray]:
        raise AssertionError("stages only send and receive")

    def send(self, array: np.ndarray, target: int) -> None:
        self.messages.setdefault((self.rank, target), deque()).append(array.copy())

    def receive(self, shape: tuple[int, ...], dtype: Any, source: int) -> np.ndarray:
        found = self.messages[source, self.rank].popleft()
        assert (found.shape, found.dtype) == (shape, dtype)
        return found


def run_stages(graph: Graph, backend: Any, stage_of: Callable[[Any], int | None], inputs: dict[str, Any]) -> Any:
    """The outputs of a graph, of its stages, and the graphs of these."""
    extents = {"tokens": len(inputs["x"])}
    whole = Plan(graph, backend).run(inputs, extents)
    calls = assign_stages(graph, stage_of, lambda value: stage_of(value) is None)
    messages: dict[tuple[int, int], deque[np.ndarray]] = {}
    outputs: dict[str, Any] = {}
    parts = []
    for stage in range(3):
        group = Queues(stage, 3, messages)
        parts.append(extract_stage(graph, calls, stage, 3, group, lambda each: each))
        outputs = Plan(parts[-1], backend).run(inputs, extents)
    assert not any(messages.values()), "all messages were received"
    return whole, outputs, parts


@pytest.fixture
def backend() -> ReferenceBackend:
    return ReferenceBackend()


def test_values_pass_from_stage_to_stage(backend: ReferenceBackend) -> None:
    """Also one that skips a stage, a constant without a stage that both ends use, and what follows from inputs."""
    layers = [backend.tensor(np.random.default_rng(n).standard_normal((8, WIDTH), np.float32)) for n in range(3)]
    table = backend.tensor(np.arange(8 * WIDTH, dtype=np.float32).reshape(8, WIDTH))
    homes = {id(layer): stage for stage, layer in enumerate(layers)}

    def forward(x: Any, places: Any) -> dict[str, Any]:
        angles = ops.select_rows(table, places)  # of inputs and a table: computed where it is read
        first = ops.add(ops.add(x, ops.select_rows(layers[0], places)), angles)
        second = ops.add(first, ops.select_rows(layers[1], places))
        third = ops.add(ops.add(second, ops.select_rows(layers[2], places)), first)
        return {"y": ops.add(third, angles)}

    graph = trace(forward, {"x": Spec((TOKENS, WIDTH), F32), "places": Spec((TOKENS,), I32)})
    inputs = {"x": np.ones((5, WIDTH), np.float32), "places": np.array([0, 3, 2, 7, 1], np.int32)}
    whole, outputs, parts = run_stages(graph, backend, lambda value: homes.get(id(value)), inputs)
    assert np.array_equal(outputs["y"], whole["y"])
    counts = [[call.op.name for call in part.calls] for part in parts]
    assert [each.count("send") for each in counts] == [2, 1, 0]
    assert [each.count("receive") for each in counts] == [0, 1, 2]
    assert [each.count("select_rows") for each in counts] == [2, 1, 2]


def test_a_cache_that_a_later_stage_reads_is_filled_there_too(backend: ReferenceBackend) -> None:
    """As layers do that share keys and values."""
    caches = backend.allocate_pages(2, [(1, WIDTH)], F32)
    late = backend.tensor(np.ones((8, WIDTH), np.float32))
    numbers = {"starts": np.array([0, 3], np.int32), "lengths": np.array([3], np.int32)}
    more = {name: backend.tensor(value) for name, value in numbers.items()}
    pages = backend.tensor(np.zeros((1, 1), np.int32))

    def forward(x: Any, places: Any) -> dict[str, Any]:
        ops.store_kv(x, ops.scale(x, factor=2.0), caches[0], places)
        q = ops.add(x, ops.select_rows(late, places))
        return {"y": ops.attention(q, caches[0], more["starts"], more["lengths"], pages, scale=1.0)}

    graph = trace(forward, {"x": Spec((TOKENS, WIDTH), F32), "places": Spec((TOKENS,), I32)})
    inputs = {"x": np.eye(3, WIDTH, dtype=np.float32), "places": np.arange(3, dtype=np.int32)}
    whole, outputs, parts = run_stages(graph, backend, lambda value: 2 if value is late else None, inputs)
    assert np.array_equal(outputs["y"], whole["y"])
    assert [call.op.name for call in parts[2].calls].count("store_kv") == 1


def test_values_in_a_layout_of_a_back_end_do_not_pass(backend: ReferenceBackend) -> None:
    early, bias = backend.tensor(np.ones((8, 32), np.float32)), backend.tensor(np.zeros(8, np.float32))
    blocks = quantize_tensor(Q8_0, np.ones((8, 32), np.float32))
    weight = backend.pack(StoredTensor("w", Q8_0, (8, 32), blocks.reshape(-1)))
    homes = {id(early): 0, id(bias): 1}

    def forward(x: Any, places: Any) -> dict[str, Any]:
        rounded = ops.quantize_rows(ops.add(x, ops.select_rows(early, places)), activation="int8/32")
        return {"y": ops.linear(rounded, weight, bias)}

    graph = trace(forward, {"x": Spec((TOKENS, 32), F32), "places": Spec((TOKENS,), I32)})
    calls = assign_stages(graph, lambda value: homes.get(id(value)), lambda value: False)
    with pytest.raises(UnsupportedModel, match="would pass from one stage to another"):
        extract_stage(graph, calls, 1, 2, Queues(1, 2, {}), lambda each: each)
