"""Rewriting rules: each fuses what it should, leaves what it must, and never changes a result."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from close import assert_close
from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import GraphError
from sporelm.ops import Graph, Spec, Symbol, trace
from sporelm.ops.op import Op
from sporelm.plan import RULES, Plan, rewrite
from sporelm.quant import F32, Q4_K, Q6_K, Q8_0, QuantFormat, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor import dtype

TOKENS = Symbol("tokens", 8)
WIDTH = 32
ALL_RULES = (
    *("add_rms_norm", "add_layer_norm", "linear_silu_mul", "linear_activate_mul", "linear_experts_silu_mul"),
    *("linear_group", "rope_store", "quantize_rows"),
)
RANDOM = np.random.default_rng(3)


class Fusing(ReferenceBackend):
    """The reference with rules on, so that fused ops run by their numpy meanings."""

    def __init__(self, *rules: str) -> None:
        super().__init__()
        self.rules = rules


BACKEND = Fusing()
NORM = BACKEND.tensor(RANDOM.standard_normal(WIDTH).astype(np.float32))


def weight(out: int = WIDTH, number_format: type[QuantFormat] = F32) -> Any:
    values = RANDOM.standard_normal((out, WIDTH)).astype(np.float32)
    return BACKEND.pack(StoredTensor("w", number_format, values.shape, quantize_tensor(number_format, values)))


def names(graph: Graph) -> list[str]:
    return [call.op.name for call in graph.calls]


def traced(function: Callable[..., Any], inputs: int = 1) -> Graph:
    """The graph of a function of `inputs` arguments [tokens, width]; results are named by their place."""

    def outputs(**values: Any) -> dict[str, Any]:
        results = function(*values.values())
        return {str(index): value for index, value in enumerate(results if isinstance(results, tuple) else (results,))}

    return trace(outputs, {f"x{index}": Spec((TOKENS, WIDTH), dtype.F32) for index in range(inputs)})


def same_results(graph: Graph, *rules: str) -> Graph:
    """The rewritten graph, after checking that both give the same bits."""
    arrays = {name: RANDOM.standard_normal((5, WIDTH)).astype(np.float32) for name in graph.inputs}
    plain = Plan(graph, Fusing()).run(arrays, {"tokens": 5})
    plan = Plan(graph, Fusing(*rules))
    for name, array in plan.run(arrays, {"tokens": 5}).items():
        assert_close(array, plain[name], "exact")
    return plan.graph


def test_rules_are_known_in_order() -> None:
    rewrite(traced(lambda x: ops.add(x, x)), ())
    assert tuple(RULES) == ALL_RULES


def test_unknown_rule_is_an_error() -> None:
    with pytest.raises(GraphError, match="unknown fusion rule fuse_all"):
        rewrite(traced(lambda x: ops.add(x, x)), ["fuse_all"])


def test_no_rule_no_change() -> None:
    graph = traced(lambda x, y: ops.rms_norm(ops.add(x, y), NORM, eps=1e-5), 2)
    assert rewrite(graph, ()) is graph


class TestAddRmsNorm:
    def test_fused_and_the_sum_stays(self) -> None:
        def function(x: Any, y: Any) -> Any:
            total = ops.add(x, y)
            return ops.rms_norm(total, NORM, eps=1e-5), ops.add(total, y)

        assert names(same_results(traced(function, 2), "add_rms_norm")) == ["add_rms_norm", "add"]

    def test_sum_used_between_is_defined_in_time(self) -> None:
        def function(x: Any, y: Any) -> Any:
            total = ops.add(x, y)
            between = ops.silu_mul(total, y)
            return ops.rms_norm(total, NORM, eps=1e-5), between

        assert names(same_results(traced(function, 2), "add_rms_norm")) == ["add_rms_norm", "silu_mul"]

    def test_only_one_norm_of_a_sum(self) -> None:
        def function(x: Any, y: Any) -> Any:
            total = ops.add(x, y)
            return ops.rms_norm(total, NORM, eps=1e-5), ops.rms_norm(total, NORM, eps=1e-6)

        assert names(same_results(traced(function, 2), "add_rms_norm")) == ["add_rms_norm", "rms_norm"]

    def test_norm_of_an_input_stays(self) -> None:
        graph = traced(lambda x: ops.rms_norm(x, NORM, eps=1e-5))
        assert names(same_results(graph, "add_rms_norm")) == ["rms_norm"]


class TestLinearGroup:
    def test_query_key_value(self) -> None:
        weights = [weight(64), weight(), weight()]
        graph = traced(lambda x: tuple(ops.linear(x, each) for each in weights))
        fused = same_results(graph, "linear_group")
        assert names(fused) == ["linear_group"]
        assert fused.calls[0].args[1] == tuple(weights)

    def test_biases_are_kept(self) -> None:
        first, second, bias = weight(), weight(), BACKEND.tensor(np.arange(WIDTH, dtype=np.float32))
        graph = traced(lambda x: (ops.linear(x, first), ops.linear(x, second, bias)))
        assert same_results(graph, "linear_group").calls[0].args[2] == (None, bias)

    def test_types_do_not_mix(self) -> None:
        weights = [weight(), weight(number_format=Q8_0), weight()]
        graph = traced(lambda x: tuple(ops.linear(x, each) for each in weights))
        assert sorted(names(same_results(graph, "linear_group"))) == ["linear", "linear_group"]

    def test_different_rows_stay_apart(self) -> None:
        first, second = weight(), weight()
        graph = traced(lambda x, y: (ops.linear(x, first), ops.linear(y, second)), 2)
        assert names(same_results(graph, "linear_group")) == ["linear", "linear"]


class TestLinearSiluMul:
    def test_fused_with_gate_first(self) -> None:
        gate, up = weight(), weight()
        graph = traced(lambda x: ops.silu_mul(ops.linear(x, gate), ops.linear(x, up)))
        fused = same_results(graph, "linear_silu_mul")
        assert names(fused) == ["linear_silu_mul"]
        assert fused.calls[0].args[1:] == (gate, up)

    def test_other_functions_are_kept(self) -> None:
        gate, up = weight(), weight()
        graph = traced(lambda x: ops.activate_mul(ops.linear(x, gate), ops.linear(x, up), kind="gelu_tanh"))
        fused = same_results(graph, *ALL_RULES)
        assert names(fused) == ["linear_activate_mul"]
        assert fused.calls[0].options == {"kind": "gelu_tanh"}

    def test_taken_before_linear_group(self) -> None:
        gate, up = weight(), weight()
        graph = traced(lambda x: ops.silu_mul(ops.linear(x, gate), ops.linear(x, up)))
        assert names(same_results(graph, *ALL_RULES)) == ["linear_silu_mul"]

    def test_result_used_elsewhere_stays(self) -> None:
        gate, up = weight(), weight()

        def function(x: Any) -> Any:
            left = ops.linear(x, gate)
            return ops.silu_mul(left, ops.linear(x, up)), left

        assert names(same_results(traced(function), "linear_silu_mul")) == ["linear", "linear", "silu_mul"]

    @pytest.mark.parametrize("why", ["bias", "types", "rows", "twice"])
    def test_what_does_not_fit_stays(self, why: str) -> None:
        gate, up = weight(), weight(number_format=Q8_0 if why == "types" else F32)
        bias = BACKEND.tensor(np.ones(WIDTH, np.float32))

        def function(x: Any, y: Any) -> Any:
            left = ops.linear(x, gate, bias) if why == "bias" else ops.linear(x, gate)
            right = left if why == "twice" else ops.linear(y if why == "rows" else x, up)
            return ops.silu_mul(left, right)

        assert "linear_silu_mul" not in names(same_results(traced(function, 2), "linear_silu_mul"))


class TestLinearExpertsSiluMul:
    IDS = BACKEND.tensor(np.array([[2, 0], [1, 2], [0, 1], [2, 1], [0, 2]], np.int32))
    OTHERS = BACKEND.tensor(np.zeros((5, 2), np.int32))

    def experts(self, out: int = WIDTH, number_format: type[QuantFormat] = F32) -> Any:
        values = RANDOM.standard_normal((3, out, WIDTH)).astype(np.float32)
        blocks = quantize_tensor(number_format, values.reshape(-1, WIDTH))
        return BACKEND.pack(StoredTensor("w", number_format, values.shape, blocks))

    def traced(self, function: Callable[..., Any]) -> Graph:
        """Of five tokens, as many as there are ids."""
        return trace(lambda x: {"y": function(x)}, {"x": Spec((5, WIDTH), dtype.F32)})

    def same_results(self, graph: Graph, *rules: str) -> list[str]:
        x = RANDOM.standard_normal((5, WIDTH)).astype(np.float32)
        results = [Plan(graph, Fusing(*each)).run({"x": x}, {})["y"] for each in ((), rules)]
        assert_close(*results, "exact")
        return names(rewrite(graph, rules))

    def test_fused_and_rounded_once(self) -> None:
        gate, up, down = (self.experts(number_format=Q8_0) for _ in range(3))

        def function(x: Any) -> Any:
            h = ops.silu_mul(ops.linear_experts(x, gate, self.IDS), ops.linear_experts(x, up, self.IDS))
            return ops.linear_experts(h, down, self.IDS)

        found = self.same_results(self.traced(function), "linear_experts_silu_mul", "quantize_rows")
        assert found == ["quantize_rows", "linear_experts_silu_mul", "quantize_rows", "linear_experts"]

    @pytest.mark.parametrize("why", ["bias", "ids", "types", "twice"])
    def test_what_does_not_fit_stays(self, why: str) -> None:
        gate, up = self.experts(), self.experts(number_format=Q8_0 if why == "types" else F32)
        bias = BACKEND.tensor(np.ones((3, WIDTH), np.float32))

        def function(x: Any) -> Any:
            left = ops.linear_experts(x, gate, self.IDS, *([bias] if why == "bias" else []))
            right = ops.linear_experts(x, up, self.OTHERS if why == "ids" else self.IDS)
            return ops.silu_mul(left, left if why == "twice" else right)

        found = self.same_results(self.traced(function), "linear_experts_silu_mul", "linear_silu_mul")
        assert found[-1] == "silu_mul"


class TestRopeStore:
    TABLE = BACKEND.tensor(RANDOM.standard_normal((64, 8)).astype(np.float32))

    def graph(self, function: Callable[..., dict[str, Any]]) -> Graph:
        whole = Spec((TOKENS,), dtype.I32)
        rows = {name: Spec((TOKENS, 16), dtype.F32) for name in ("q", "k", "v")}
        return trace(function, rows | {"positions": whole, "slots": whole})

    def rope(self, x: Any, positions: Any, style: str = "half") -> Any:
        return ops.rope(x, positions, self.TABLE, head_dim=8, style=style)

    def check(self, function: Callable[..., dict[str, Any]], expected: list[str]) -> None:
        """Rewrites, compares the ops, then results and the cache's content."""
        arrays = {name: RANDOM.standard_normal((3, 16)).astype(np.float32) for name in ("q", "k", "v")}
        arrays |= {"positions": np.array([5, 6, 7], np.int32), "slots": np.array([5, 70, 7], np.int32)}
        held = []
        for rules in ((), ("rope_store",)):
            self.cache = BACKEND.allocate_pages(2, [(2, 8)], dtype.F32)[0]
            plan = Plan(self.graph(function), Fusing(*rules))
            outputs = plan.run(arrays, {"tokens": 3})
            held.append([*outputs.values(), BACKEND.export_pages(self.cache, [0, 1])])
        assert names(plan.graph) == expected
        for fused, plain in zip(*held, strict=True):
            assert_close(fused, plain, "exact")

    def test_fused(self) -> None:
        def function(q: Any, k: Any, v: Any, positions: Any, slots: Any) -> dict[str, Any]:
            turned = self.rope(q, positions)
            ops.store_kv(self.rope(k, positions), v, self.cache, slots)
            return {"q": ops.add(turned, turned)}

        self.check(function, ["rope_store", "add"])

    def test_keys_used_elsewhere_stay(self) -> None:
        def function(q: Any, k: Any, v: Any, positions: Any, slots: Any) -> dict[str, Any]:
            turned, keys = self.rope(q, positions), self.rope(k, positions)
            ops.store_kv(keys, v, self.cache, slots)
            return {"q": turned, "k": keys}

        self.check(function, ["rope", "rope", "store_kv"])

    def test_query_used_before_the_store_stays(self) -> None:
        def function(q: Any, k: Any, v: Any, positions: Any, slots: Any) -> dict[str, Any]:
            turned = self.rope(q, positions)
            early = ops.add(turned, turned)
            ops.store_kv(self.rope(k, positions), v, self.cache, slots)
            return {"q": early}

        self.check(function, ["rope", "add", "rope", "store_kv"])

    def test_other_style_stays(self) -> None:
        def function(q: Any, k: Any, v: Any, positions: Any, slots: Any) -> dict[str, Any]:
            turned = self.rope(q, positions, style="adjacent")
            ops.store_kv(self.rope(k, positions), v, self.cache, slots)
            return {"q": turned}

        self.check(function, ["rope", "rope", "store_kv"])

    def test_state_keeps_its_order(self) -> None:
        """Two stores in one cache: the second wins before and after."""

        def function(q: Any, k: Any, v: Any, positions: Any, slots: Any) -> dict[str, Any]:
            first, second = self.rope(q, positions), self.rope(v, positions)
            ops.store_kv(self.rope(k, positions), v, self.cache, slots)
            ops.store_kv(self.rope(v, positions), q, self.cache, slots)
            return {"q": first, "v": second}

        self.check(function, ["rope_store", "rope_store"])


class TestQuantizeRows:
    def test_shared_by_all_users(self) -> None:
        weights = [weight(number_format=Q8_0) for _ in range(5)]

        def function(x: Any) -> Any:
            hidden = ops.rms_norm(x, NORM, eps=1e-5)
            group = tuple(ops.linear(hidden, each) for each in weights[:2])
            return *group, ops.silu_mul(ops.linear(hidden, weights[2]), ops.linear(hidden, weights[3])), hidden

        fused = same_results(traced(function), *ALL_RULES)
        assert names(fused) == ["rms_norm", "quantize_rows", "linear_group", "linear_silu_mul"]

    def test_inputs_too(self) -> None:
        only = weight(number_format=Q8_0)
        graph = traced(lambda x: ops.linear(x, only))
        assert names(same_results(graph, "quantize_rows")) == ["quantize_rows", "linear"]

    def test_float_weights_keep_float_rows(self) -> None:
        whole, rounded = weight(), weight(number_format=Q8_0)
        graph = traced(lambda x: (ops.linear(x, whole), ops.linear(x, rounded)))
        fused = same_results(graph, "quantize_rows")
        assert names(fused) == ["quantize_rows", "linear", "linear"]
        assert fused.calls[1].args[0] is fused.inputs["x0"]
        assert fused.calls[2].args[0] is fused.calls[0].results[0]


class TestQuantizeRowsOfTwoKinds:
    """Queries and keys in super-blocks beside values in blocks of 32, as files mix them: x is rounded twice."""

    WIDE = 512

    def weight(self, number_format: type[QuantFormat]) -> Any:
        values = RANDOM.standard_normal((WIDTH, self.WIDE)).astype(np.float32)
        return BACKEND.pack(StoredTensor("w", number_format, values.shape, quantize_tensor(number_format, values)))

    def check(self, formats: list[type[QuantFormat]], expected: list[str]) -> Graph:
        """The graph of products of one x, after checking the names of its ops and that results keep their bits."""
        weights = [self.weight(each) for each in formats]

        def outputs(x: Any) -> dict[str, Any]:
            return {str(index): ops.linear(x, each) for index, each in enumerate(weights)}

        graph = trace(outputs, {"x": Spec((TOKENS, self.WIDE), dtype.F32)})
        arrays = {"x": RANDOM.standard_normal((5, self.WIDE)).astype(np.float32)}
        plain = Plan(graph, Fusing()).run(arrays, {"tokens": 5})
        plan = Plan(graph, Fusing(*ALL_RULES))
        for name, array in plan.run(arrays, {"tokens": 5}).items():
            assert_close(array, plain[name], "exact")
        assert names(plan.graph) == expected
        return plan.graph

    @staticmethod
    def kinds(graph: Graph) -> list[str]:
        """Return the element type of each product's rows."""
        return [call.args[0].dtype.name for call in graph.calls if call.op is not ops.quantize_rows]

    def test_one_rounding_for_each_kind(self) -> None:
        graph = self.check([Q4_K, Q4_K, Q8_0], ["quantize_rows", "quantize_rows", "linear_group", "linear"])
        rounded = [call.options["activation"] for call in graph.calls if call.op is ops.quantize_rows]
        assert sorted(rounded) == ["int8/256", "int8/32"]
        assert self.kinds(graph) == ["int8/256", "int8/32"]

    def test_formats_of_one_kind_share_their_rows(self) -> None:
        graph = self.check([Q4_K, Q4_K, Q6_K], ["quantize_rows", "linear_group", "linear"])
        assert self.kinds(graph) == ["int8/256", "int8/256"]
        first, second = graph.calls[1:]
        assert first.args[0] is second.args[0] is graph.calls[0].results[0]

    def test_three_kinds_of_numbers_for_one_x(self) -> None:
        expected = ["quantize_rows", "quantize_rows", "linear", "linear", "linear"]
        assert self.kinds(self.check([F32, Q6_K, Q8_0], expected)) == ["f32", "int8/256", "int8/32"]

    def test_kinds_do_not_mix_in_one_product(self) -> None:
        gate, up = self.weight(Q4_K), self.weight(Q8_0)
        spec = {"x": Spec((TOKENS, self.WIDE), dtype.F32)}
        graph = trace(lambda x: {"y": ops.silu_mul(ops.linear(x, gate), ops.linear(x, up))}, spec)
        found = names(Plan(graph, Fusing(*ALL_RULES)).graph)
        assert found == ["quantize_rows", "quantize_rows", "linear", "linear", "silu_mul"]


def change(x: Any, table: Any) -> tuple[Any, ...]:
    """An op that only these tests know: it writes to a table."""
    table[0] = x[0]
    return ()


@pytest.mark.parametrize("updated_between", [False, True])
def test_updates_are_barriers_for_what_reads_the_state(updated_between: bool) -> None:
    """A rope whose table is state does not move across a call that changes it."""
    changing = Op(change, lambda x, table: (), ("table",))
    table = BACKEND.tensor(np.zeros((4, 2), np.float32))
    (cache,) = BACKEND.allocate_pages(1, [(1, 2)], dtype.F32)

    def function(q: Any, k: Any, slots: Any) -> dict[str, Any]:
        turned, keys = (ops.rope(x, slots, table, head_dim=2, style="half") for x in (q, k))
        if updated_between:
            changing(k, table)
        ops.store_kv(keys, k, cache, slots)
        return {"q": turned}

    rows = Spec((TOKENS, 2), dtype.F32)
    graph = rewrite(trace(function, {"q": rows, "k": rows, "slots": Spec((TOKENS,), dtype.I32)}), ALL_RULES)
    assert names(graph) == (["rope", "rope", "change", "store_kv"] if updated_between else ["rope_store"])
