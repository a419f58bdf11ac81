"""Experts: a row is the same in any batch, eager and planned, on any number of threads; what routing promises."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from close import assert_close
from conformance.guarded_cpu import GuardedCpu
from conformance.same_results import assert_same
from cpu_targets import TARGETS
from sporelm import ops
from sporelm.backends.stacked_experts import list_matrices, stack_experts
from sporelm.errors import OpError
from sporelm.evals.conformance.conformance_case import FORMAT_NAMES, On, width_of
from sporelm.evals.conformance.linear_experts import LIGHT, ROUTES, spread
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.quant import FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32

EXPERTS, CHOSEN, MAX_TOKENS = 5, 2, 131
BATCHES = (1, 2, 3, 16, 17, 60, 121)
# On lesser targets, which have kernels of their own for every case of test_ops, by default one equality
BEST = pytest.mark.parametrize(
    "opened_cpu", [pytest.param(t, marks=[] if t == TARGETS[0] else [pytest.mark.all]) for t in TARGETS], indirect=True
)
EVERY = [
    pytest.param(format_name, marks=[] if format_name in LIGHT else [pytest.mark.all]) for format_name in FORMAT_NAMES
]


class Layer:
    """Experts behind a router, as a model has them; `shared` adds one that every row has, with a gate of its own."""

    def __init__(self, on: On, format_name: str, *, biased: bool = False, shared: bool = False) -> None:
        width = self.width = width_of(format_name, 3)
        ffn = width_of(format_name, 1 if format_name == "F32" else 2)
        self.router = on.weight("F32", EXPERTS, width)
        self.gate, self.up = (on.experts(format_name, EXPERTS, ffn, width) for _ in range(2))
        self.down = on.experts(format_name, EXPERTS, width, ffn)
        self.biases = [on.rows(EXPERTS, out) for out in (ffn, ffn, width)] if biased else []
        self.shared = [on.weight("F32", 1, width), on.weight("F32", width, width)] if shared else []

    def forward(self, x: Any) -> dict[str, Any]:
        weights, ids = ops.route(ops.linear(x, self.router), k=CHOSEN, renormalize=True)
        biases = [(bias,) for bias in self.biases] or [()] * 3
        gate, up = (ops.linear_experts(x, w, ids, *b) for w, b in zip((self.gate, self.up), biases[:2], strict=True))
        h = ops.clamped_swiglu(gate, up, alpha=1.702, limit=7.0) if self.biases else ops.silu_mul(gate, up)
        y = ops.combine_experts(ops.linear_experts(h, self.down, ids, *biases[2]), weights)
        if self.shared:
            share, _ = ops.route(ops.linear(x, self.shared[0]), k=1, scores="sigmoid")
            y = ops.add(y, ops.combine_experts(ops.linear(x, self.shared[1]), share))
        return {"y": ops.add(x, y)}


@pytest.mark.parametrize("format_name", EVERY)
def test_a_row_is_the_same_in_any_batch(cpu: Any, format_name: str) -> None:
    """So one token, groups of few pairs and groups of many reduce in one order; most rows want one expert."""
    on = On(cpu, format_name)
    width = width_of(format_name, 2)
    gate, up = (on.experts(format_name, EXPERTS, 33, width) for _ in range(2))
    x, ids = on.values(MAX_TOKENS, width), spread(on, MAX_TOKENS, EXPERTS, CHOSEN, "skewed")
    bias = on.rows(EXPERTS, 33)

    def run(rows: slice) -> list[np.ndarray]:
        given, chosen = on.tensor(x[rows]), on.ints(ids[rows])
        tensors = (
            ops.linear_experts(given, gate, chosen),
            *([ops.linear_experts(given, gate, chosen, bias)] if format_name == "F32" else []),
            *([ops.linear_experts_silu_mul(given, gate, up, chosen)] if format_name == "Q4_1" else []),
        )
        return [tensor.numpy() for tensor in tensors]

    whole = run(slice(None))
    for batch in BATCHES:
        for start in {0, MAX_TOKENS - batch}:
            for found, expected in zip(run(slice(start, start + batch)), whole, strict=True):
                assert_same(found, expected[start : start + batch])


@BEST
@pytest.mark.parametrize("format_name", [*LIGHT, pytest.param("Q4_K", marks=pytest.mark.all)])
def test_a_layer_is_the_same_eager_and_planned(cpu: Any, reference: Any, format_name: str) -> None:
    for kind in ("plain", "biased", "shared") if cpu.target.name == TARGETS[0] else ("plain",):
        check_layer(cpu, reference, format_name, kind)


def check_layer(cpu: Any, reference: Any, format_name: str, kind: str) -> None:
    """Steps of every size from memory full of NaN; against the meaning where no int8 can fall the other way."""
    layers = [
        Layer(On(b, format_name), format_name, biased=kind == "biased", shared=kind == "shared")
        for b in (cpu, reference)
    ]
    spec = Spec((Symbol("tokens", 512), layers[0].width), F32)
    plan = Plan(trace(layers[0].forward, {"x": spec}), cpu)
    plan.prepare()
    fused = [call.op.name for call in plan.graph.calls]
    assert ("linear_experts_silu_mul" in fused) == (kind != "biased")
    for tokens in (1, 3, 16, 17, 200, 1):
        x = On(cpu, f"{tokens}").values(tokens, layers[0].width)
        for bucket in plan.bucket_programs.values():
            memory: Any = bucket.program
            memory._arena.array[:] = 0xFF
        found = plan.run({"x": x}, {"tokens": tokens})["y"].copy()
        assert_same(found, layers[0].forward(cpu.tensor(x))["y"].numpy())
        if format_name == "F32":
            expected = layers[1].forward(reference.tensor(x))["y"].numpy()
            assert_close(found / np.abs(expected).max(), expected / np.abs(expected).max(), "f32")
    plan.close()


@pytest.mark.parametrize("thread_pools", TARGETS[:1], indirect=True)
def test_results_do_not_depend_on_the_number_of_threads(thread_pools: list[GuardedCpu]) -> None:
    results = []
    for backend in thread_pools:
        layer = Layer(On(backend, "threads"), "Q4_1")
        x = On(backend, "rows").values(200, layer.width)
        plan = Plan(trace(layer.forward, {"x": Spec((Symbol("tokens", 512), layer.width), F32)}), backend)
        results.append([plan.run({"x": x[:n]}, {"tokens": n})["y"].copy() for n in (1, 2, 8, 200)])
        plan.close()
    for others in results[1:]:
        for found, expected in zip(others, results[0], strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("opened_cpu", TARGETS[:1], indirect=True)
@pytest.mark.parametrize("format_name", ["Q8_0", "F16", "Q8_1"])
def test_experts_in_one_tensor_and_apart_are_packed_alike(cpu: Any, format_name: str) -> None:
    """Rows that do not fill a vector: each expert has panels of its own. Q8_1 has no panels and is widened."""
    on = On(cpu, format_name)
    blocks = quantize_tensor(FORMATS[format_name], on.values(3 * 33, 64))
    whole = StoredTensor("w", FORMATS[format_name], (3, 33, 64), blocks)
    apart = stack_experts(
        [StoredTensor("w", FORMATS[format_name], (33, 64), each) for each in np.split(blocks.reshape(-1), 3)]
    )
    assert np.array_equal(apart.blocks, whole.blocks)
    assert np.array_equal(apart.dequantize(), whole.dequantize())
    packed = [cpu.pack(weight) for weight in (whole, apart)]
    assert np.array_equal(packed[0].storage.array, packed[1].storage.array)
    assert packed[0].storage.array.size == cpu.packed_bytes(FORMATS[format_name], (3, 33, 64))
    x, ids = on.rows(4, 64), (2, 0, 1, 2)
    found = ops.linear_experts(x, packed[1], on.ints([[expert] for expert in ids])).numpy()
    each = [ops.linear(x, cpu.pack(matrix)).numpy() for matrix in list_matrices(whole)]
    for row, expert in enumerate(ids):
        assert_same(found[row, 0], each[expert][row])


def test_matrices_that_differ_are_not_stacked_as_experts() -> None:
    def matrix(format_name: str, *shape: int) -> StoredTensor:
        return StoredTensor(
            "w", FORMATS[format_name], shape, quantize_tensor(FORMATS[format_name], np.zeros(shape, np.float32))
        )

    with pytest.raises(OpError, match=r"one shape and one number format, got F16\[4, 32\], F32\[4, 32\]"):
        stack_experts([matrix("F32", 4, 32), matrix("F16", 4, 32)])
    with pytest.raises(OpError, match=r"got F32\[4, 32\], F32\[8, 32\]"):
        stack_experts([matrix("F32", 4, 32), matrix("F32", 8, 32)])


@BEST
@pytest.mark.parametrize("tokens", [1, 5, 90])
def test_ids_that_no_expert_has_read_no_foreign_memory(cpu: Any, tokens: int) -> None:
    """The caller's ids are refused; a step that holds some anyway leaves the other rows right."""
    on = On(cpu, "foreign")
    weight, x = on.experts("F32", 4, 33, 48), on.rows(tokens, 48)
    ids = spread(on, tokens, 4, 2, "even")
    expected = ops.linear_experts(x, weight, on.ints(ids)).numpy()
    wrong = ids.copy()
    wrong[0, 1] = 2**30
    with pytest.raises(OpError, match=r"ids\[0, 1\] is 1073741824; it must lie between 0 and 3"):
        ops.linear_experts(x, weight, on.ints(wrong))
    run: Callable[..., Any] = cpu.run
    check, ops.linear_experts.indices = ops.linear_experts.indices, None
    try:
        for foreign in (2**30, -1, -(2**31), 4):
            wrong[0, 1] = foreign
            found = run(ops.linear_experts, (x, weight, on.ints(wrong)), {}).numpy()
            assert_same(found[0, 0], expected[0, 0])
            assert_same(found[1:], expected[1:])
    finally:
        ops.linear_experts.indices = check


@BEST
@pytest.mark.parametrize("kind", ROUTES)
def test_a_row_is_routed_the_same_in_any_batch(cpu: Any, kind: str) -> None:
    logits = On(cpu, kind).values(33, 40)
    whole = [result.numpy() for result in ops.route(cpu.tensor(logits), **ROUTES[kind])]
    for start, stop in ((0, 1), (5, 8), (16, 33)):
        part = [result.numpy() for result in ops.route(cpu.tensor(logits[start:stop]), **ROUTES[kind])]
        for found, expected in zip(part, whole, strict=True):
            assert np.array_equal(found, expected[start:stop])
