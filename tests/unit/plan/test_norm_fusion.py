"""Sums that feed norms: layer norms are merged as others are, norms of heads are left alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from close import assert_close
from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.ops import Graph, Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor import dtype

WIDTH = 32
RANDOM = np.random.default_rng(4)


class Fusing(ReferenceBackend):
    def __init__(self, *rules: str) -> None:
        super().__init__()
        self.rules = rules


BACKEND = Fusing()


def vector(width: int) -> Any:
    return BACKEND.tensor(RANDOM.standard_normal(width).astype(np.float32))


def fused(function: Callable[[Any, Any], Any], rule: str) -> list[str]:
    """The ops of the rewritten graph, after checking that both give the same bits."""
    spec = Spec((Symbol("tokens", 8), WIDTH), dtype.F32)
    graph: Graph = trace(lambda x, y: {"z": function(x, y)}, {"x": spec, "y": spec})
    arrays = {name: RANDOM.standard_normal((5, WIDTH)).astype(np.float32) for name in graph.inputs}
    plan = Plan(graph, Fusing(rule))
    found, wanted = (each.run(arrays, {"tokens": 5})["z"] for each in (plan, Plan(graph, Fusing())))
    assert_close(found, wanted, "exact")
    return [call.op.name for call in plan.graph.calls]


@pytest.mark.parametrize("count", [0, 1, 2], ids=["bare", "scale", "scale and bias"])
def test_layer_norms_are_merged(count: int) -> None:
    vectors = [vector(WIDTH) for _ in range(count)]
    assert fused(lambda x, y: ops.layer_norm(ops.add(x, y), *vectors, eps=1e-5), "add_layer_norm") == ["add_layer_norm"]


def test_norms_of_heads_stay() -> None:
    head = vector(WIDTH // 4)
    assert fused(lambda x, y: ops.rms_norm(ops.add(x, y), head, eps=1e-5), "add_rms_norm") == ["add", "rms_norm"]
