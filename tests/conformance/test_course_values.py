"""The operator tests of the course project learning-lm-rs, on every back-end, eager and through a plan.

Values: the course's own tests (relative tolerance 1e-3). Its mlp case has equal gate and up weights, so one more case
tells them apart.
"""

from collections.abc import Callable, Iterator
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest

from available import BACKENDS, open_available
from close import assert_close
from sporelm import ops
from sporelm.ops import Spec, trace
from sporelm.plan import Plan
from sporelm.quant import F32
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor import dtype


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    backend = open_available(request.param)
    yield backend
    backend.close()


def rows(values: list[float], *shape: int) -> np.ndarray:
    return np.array(values, np.float32).reshape(shape)


def packed(backend: Any, array: np.ndarray) -> Any:
    """A weight as the back-end packs it."""
    return backend.pack(StoredTensor("weight", F32, array.shape, array.reshape(-1).view(np.uint8)))


@pytest.fixture(params=["eager", "planned"])
def run(request: pytest.FixtureRequest, backend: Any) -> Callable[..., np.ndarray]:
    """Runs a function of float32 rows: on tensors, or traced and planned."""

    def eager(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
        return function(*map(backend.tensor, arrays)).numpy()

    def planned(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
        named = {f"x{index}": array for index, array in enumerate(arrays)}
        specs = {name: Spec(array.shape, dtype.F32) for name, array in named.items()}
        graph = trace(lambda **values: {"result": function(*values.values())}, specs)
        return Plan(graph, backend).run(named, {})["result"]

    return eager if request.param == "eager" else planned


def test_silu(run: Callable[..., np.ndarray]) -> None:
    y, x = rows([2, 3, 4], 1, 3), rows([1, 2, 3], 1, 3)
    assert_close(run(ops.silu_mul, x, y), [[1.4621172, 5.2847824, 11.43089]], "course")


def test_rms_norm(run: Callable[..., np.ndarray], backend: Any) -> None:
    weight = packed(backend, rows([1, 2], 2))
    result = run(lambda x: ops.rms_norm(x, weight, eps=1e-6), rows([1, 2, 3, 4], 2, 2))
    assert_close(result, [[0.6324554, 2.5298216], [0.8485281, 2.2627416]], "course")


def test_matmul_transb(run: Callable[..., np.ndarray], backend: Any) -> None:
    """c + a @ b.T."""
    a, c = rows([1, 2, 3, 4, 5, 6], 2, 3), rows([1, 2, 3, 4], 2, 2)
    b = packed(backend, a)
    assert_close(run(lambda a, c: ops.add(ops.linear(a, b), c), a, c), [[15, 34], [35, 81]], "course")


def mlp(backend: Any, gate: list[float], up: list[float], down: list[float]) -> Callable[[Any], Any]:
    """The course's mlp over a residual of width 2 and a hidden width of 3: norm, gate and up, SiLU, down, add."""
    norm = packed(backend, rows([1, 1], 2))
    weights = [packed(backend, rows(gate, 3, 2)), packed(backend, rows(up, 3, 2)), packed(backend, rows(down, 2, 3))]

    def function(residual: Any) -> Any:
        hidden = ops.rms_norm(residual, norm, eps=1e-6)
        inner = ops.silu_mul(ops.linear(hidden, weights[0]), ops.linear(hidden, weights[1]))
        return ops.add(residual, ops.linear(inner, weights[2]))

    return function


def test_mlp(run: Callable[..., np.ndarray], backend: Any) -> None:
    up = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert_close(run(mlp(backend, up, up, up), np.ones((4, 2), np.float32)), [[1.3429964, 1.7290739]] * 4, "course")


def test_mlp_tells_gate_from_up(run: Callable[..., np.ndarray], backend: Any) -> None:
    gate, up, down = [0.9, -0.4, 0.2, 0.7, -1.1, 0.3], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]

    def by_hand(residual: list[float], gate: list[float], up: list[float]) -> list[float]:
        scale = 1 / sqrt(sum(value * value for value in residual) / 2 + 1e-6)
        x = [value * scale for value in residual]
        gates = [gate[2 * i] * x[0] + gate[2 * i + 1] * x[1] for i in range(3)]
        ups = [up[2 * i] * x[0] + up[2 * i + 1] * x[1] for i in range(3)]
        inner = [g / (1 + exp(-g)) * u for g, u in zip(gates, ups, strict=True)]
        return [residual[o] + sum(down[3 * o + i] * inner[i] for i in range(3)) for o in range(2)]

    residual = [[1.0, 1.0], [0.5, -2.0], [3.0, 0.25]]
    expected = np.array([by_hand(row, gate, up) for row in residual])
    swapped = np.array([by_hand(row, up, gate) for row in residual])
    assert np.abs(expected - swapped).min() > 0.01, "the case must tell gate from up"
    assert_close(run(mlp(backend, gate, up, down), np.array(residual, np.float32)), expected, "course")
