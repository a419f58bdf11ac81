"""Arguments that ops reject and graphs that are illegal: one clear line each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import GraphError, OpError
from sporelm.ops import Call, Graph, Spec, Symbol, Value, trace
from sporelm.quant import F32, Q8_0, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor import dtype

BACKEND = ReferenceBackend()
TOKENS = Symbol("tokens", 8)


def f32(*shape: int) -> Any:
    return BACKEND.tensor(np.zeros(shape, np.float32))


def i32(*shape: int, fill: int = 0) -> Any:
    return BACKEND.tensor(np.full(shape, fill, np.int32))


def weight(out: int, width: int, number_format: Any = F32) -> Any:
    values = np.zeros((out, width), np.float32)
    return BACKEND.pack(StoredTensor("w", number_format, values.shape, quantize_tensor(number_format, values)))


def experts(out: int, width: int) -> Any:
    """Three of them."""
    values = np.zeros((3, out, width), np.float32)
    return BACKEND.pack(StoredTensor("w", F32, values.shape, values.view(np.uint8)))


CACHE = BACKEND.allocate_pages(2, [(2, 4)], dtype.F32)[0]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "add shapes": (lambda: ops.add(f32(2, 3), f32(3, 2)), r"must be equal, got f32\[2, 3\] and f32\[3, 2\]"),
    "add types": (lambda: ops.add(f32(2, 3), i32(2, 3)), r"y i32\[2, 3\] must hold f32 elements"),
    "too few": (lambda: ops.add(f32(2)), "add takes x, y; got 1 arguments"),
    "unknown option": (lambda: ops.add(f32(2), f32(2), eps=1), "add has no option eps"),
    "norm weight": (lambda: ops.rms_norm(f32(2, 3), f32(4), eps=1e-5), "one element a column of x"),
    "residual": (lambda: ops.add_rms_norm(f32(2, 3), f32(2, 4), f32(3), eps=1e-5), "residual .* must be like x"),
    "linear columns": (lambda: ops.linear(f32(2, 3), weight(4, 5)), "as many columns as weight"),
    "linear rank": (lambda: ops.linear(f32(2, 3), f32(3)), "must have two dimensions"),
    "linear bias": (lambda: ops.linear(f32(2, 3), weight(4, 3), f32(5)), "bias .* must have 4 elements"),
    "int8 rows": (lambda: ops.linear(ops.quantize_rows(f32(2, 32)), weight(4, 32)), "multiplies float activations"),
    "parts of runs": (lambda: ops.quantize_rows(f32(2, 48)), "whole runs of 32 columns"),
    "part of a run": (lambda: ops.quantize_rows(f32(2, 64), activation="int8/256"), "whole runs of 256 columns"),
    "biases": (lambda: ops.linear_group(f32(2, 3), (weight(4, 3), weight(4, 3)), (f32(4),)), "1 biases for 2 weights"),
    "gate and up": (lambda: ops.linear_silu_mul(f32(2, 3), weight(4, 3), weight(5, 3)), "gate gives .* but up gives"),
    "experts rank": (lambda: ops.linear_experts(f32(2, 3), weight(4, 3), i32(2, 1)), "three dimensions"),
    "experts columns": (lambda: ops.linear_experts(f32(2, 3), experts(4, 5), i32(2, 1)), "as many columns as weight"),
    "experts rows": (lambda: ops.linear_experts(f32(3, 5), experts(4, 5), i32(2, 1)), "a row for each token of ids"),
    "experts slots": (lambda: ops.linear_experts(f32(2, 3, 5), experts(4, 5), i32(2, 2)), "or for each of its experts"),
    "experts ids": (lambda: ops.linear_experts(f32(2, 5), experts(4, 5), i32(2)), "ids .* must have 2 dimensions"),
    "experts bias": (lambda: ops.linear_experts(f32(2, 5), experts(4, 5), i32(2, 1), f32(3, 5)), r"must be \[3, 4\]"),
    "experts' gate": (
        lambda: ops.linear_experts_silu_mul(f32(2, 5), experts(4, 5), experts(3, 5), i32(2, 1)),
        "of one shape and one number format",
    ),
    "no such expert": (lambda: ops.linear_experts(f32(2, 5), experts(4, 5), i32(2, 1, fill=3)), r"between 0 and 2"),
    "sum of experts": (lambda: ops.combine_experts(f32(2, 3, 5), f32(2, 2)), "a row for each of weights"),
    "sum with a bias": (lambda: ops.combine_experts(f32(2, 3, 5), f32(2, 3), f32(4)), "as many numbers as a row"),
    "sum of one": (lambda: ops.combine_experts(f32(2, 5), f32(2, 2)), "weights .* must have one column"),
    "route k": (lambda: ops.route(f32(2, 8), k=5, groups=4, top_groups=2), "between 1 and the 4 experts that may be"),
    "route groups": (lambda: ops.route(f32(2, 8), k=2, groups=3), "8 experts cannot be cut into 3 groups"),
    "route top groups": (lambda: ops.route(f32(2, 8), k=2, groups=4, top_groups=5), "top_groups 5 must lie between"),
    "route scores": (lambda: ops.route(f32(2, 8), k=2, scores="tanh"), "scores 'tanh' must be one of softmax, "),
    "route group score": (lambda: ops.route(f32(2, 8), k=2, group_score="mean"), "must be one of max, sum_of_two"),
    "route pairs": (
        lambda: ops.route(f32(2, 8), k=2, groups=8, top_groups=4, group_score="sum_of_two"),
        "groups of two experts or more, not 8 in 8",
    ),
    "route bias": (lambda: ops.route(f32(2, 8), f32(7), k=2), "selection_bias .* must have 8 elements"),
    "route near": (
        lambda: ops.route(f32(2, 8), k=2, scores="softmax_of_near", near=-0.1),
        "near -0.1 must be finite and not negative",
    ),
    "too many experts": (lambda: ops.route(f32(1, 5000), k=2), "1 to 4096 are allowed"),
    "swiglu's limit": (lambda: ops.clamped_swiglu(f32(2, 3), f32(2, 3), alpha=1.0, limit=0.0), "must be positive"),
    "rope style": (lambda: ops.rope(f32(2, 8), i32(2), f32(9, 4), head_dim=4, style="other"), "must be one of"),
    "rope heads": (lambda: ops.rope(f32(2, 9), i32(2), f32(9, 4), head_dim=4, style="half"), "whole heads of 4"),
    "rope table": (lambda: ops.rope(f32(2, 8), i32(2), f32(9, 6), head_dim=4, style="half"), "even part of a head"),
    "positions": (lambda: ops.rope(f32(2, 8), i32(3), f32(9, 4), head_dim=4, style="half"), "one element a row"),
    "rope halves": (
        lambda: ops.rope(f32(2, 6), i32(2), f32(9, 6), head_dim=6, style="halves"),
        "in both halves: a multiple of 4",
    ),
    "several positions": (
        lambda: ops.rope(f32(2, 8), i32(3, 2), f32(9, 4), head_dim=4, style="half", streams=(0, 1)),
        "one row a row of x",
    ),
    "streams": (
        lambda: ops.rope(f32(2, 8), i32(2, 2), f32(9, 4), head_dim=4, style="half", streams=(0, 2)),
        r"streams \(0, 2\) must be one of 2 for each of 2 pairs",
    ),
    "many streams": (
        lambda: ops.rope(f32(2, 8), i32(2, 9), f32(9, 4), head_dim=4, style="half", streams=(0, 8)),
        "at most 8 columns",
    ),
    "store width": (lambda: ops.store_kv(f32(2, 9), f32(2, 9), CACHE, i32(2)), "must both have 8 columns"),
    "store slots": (lambda: ops.store_kv(f32(2, 8), f32(2, 8), CACHE, i32(3)), "one element a row of k"),
    "window": (
        lambda: ops.attention(f32(2, 8), CACHE, i32(2), i32(1), i32(1, 1), scale=1.0, window=0),
        "window 0 must be positive",
    ),
    "chunk": (
        lambda: ops.attention(f32(2, 8), CACHE, i32(2), i32(1), i32(1, 1), scale=1.0, chunk=0),
        "chunk 0 must be positive",
    ),
    "window and chunk": (
        lambda: ops.attention(f32(2, 8), CACHE, i32(2), i32(1), i32(1, 1), scale=1.0, window=4, chunk=4),
        "window 4 and chunk 4: a row has one of them at most",
    ),
    "sinks": (
        lambda: ops.attention(f32(2, 8), CACHE, i32(2), i32(1), i32(1, 1), f32(3), scale=1.0),
        r"sinks f32\[3\] must have one element a head: 2",
    ),
    "slopes": (
        lambda: ops.attention(f32(2, 8), CACHE, i32(2), i32(1), i32(1, 1), None, f32(3), scale=1.0),
        r"slopes f32\[3\] must have one element a head: 2",
    ),
    "spans": (
        lambda: ops.attention(f32(2, 8), CACHE, i32(2), i32(1), i32(1, 1), None, None, i32(1, 2), scale=1.0),
        r"spans i32\[1, 2\] must have two elements a row of q f32\[2, 8\]",
    ),
    "spans and slopes": (
        lambda: ops.attention(f32(2, 8), CACHE, i32(2), i32(1), i32(1, 1), None, f32(2), i32(2, 2), scale=1.0),
        r"spans i32\[2, 2\] and slopes",
    ),
    "spans and chunk": (
        lambda: ops.attention(f32(2, 8), CACHE, i32(2), i32(1), i32(1, 1), None, None, i32(2, 2), scale=1.0, chunk=4),
        r"spans i32\[2, 2\] and chunk 4",
    ),
    "softcap": (
        lambda: ops.attention(f32(2, 8), CACHE, i32(2), i32(1), i32(1, 1), scale=1.0, softcap=0.0),
        "softcap 0.0 must be positive",
    ),
    "query heads": (lambda: ops.attention(f32(2, 12), CACHE, i32(2), i32(1), i32(1, 1), scale=1.0), "whole groups"),
    "k": (lambda: ops.top_k(f32(2, 5), k=6), "k 6 must lie between 1 and the 5"),
    "two devices": (
        lambda: ops.add(f32(2), ReferenceBackend().tensor(np.zeros(2, np.float32))),
        "all arguments on one device",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(OpError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_int8_weights_take_int8_rows() -> None:
    assert ops.linear(ops.quantize_rows(f32(2, 32)), weight(4, 32, Q8_0)).shape == (2, 4)


def graph() -> Graph:
    spec = Spec((TOKENS, 4), dtype.F32)
    return trace(lambda x: {"y": ops.add(ops.add(x, x), x)}, {"x": spec})


def test_the_value_decides() -> None:
    """Real arguments run now; one traced argument is enough to record, and real ones become constants."""
    assert ops.add(f32(2, 2), f32(2, 2)).numpy().tolist() == [[0, 0], [0, 0]]
    constant = f32(4)
    recorded = trace(lambda x: {"y": ops.rms_norm(x, constant, eps=1e-5)}, {"x": Spec((TOKENS, 4), dtype.F32)})
    assert recorded.calls[0].args[1] is constant
    assert recorded.outputs["y"].shape == (TOKENS, 4)


def test_legal_graph_is_returned() -> None:
    legal = graph()
    assert legal.check() is legal


def broken(change: Callable[[Graph], Any]) -> Graph:
    made = graph()
    change(made)
    return made


def claim_other_spec(made: Graph) -> None:
    call = made.calls[1]
    wrong = Value(made, Spec((TOKENS, 5), dtype.F32), "wrong")
    made.calls[1] = Call(call.op, call.args, call.options, (wrong,))


def update_a_value(made: Graph) -> None:
    rows, slots = Spec((TOKENS, 8), dtype.F32), Spec((TOKENS,), dtype.I32)
    k, where = made.input("k", rows), made.input("where", slots)
    cache = made.input("cache", Spec((2, 2, 2, 64, 4), dtype.F32))
    made.calls.append(Call(ops.store_kv, (k, k, cache, where), {}, ()))


def compute_what_the_host_reads(made: Graph) -> None:
    """Lengths that a call of the same graph gives: unknown before the step runs."""
    q, ids = made.input("q", Spec((TOKENS, 8), dtype.F32)), made.input("ids", Spec((3,), dtype.I32))
    pages = made.input("pages", Spec((TOKENS, 1), dtype.I32))
    (cache,) = BACKEND.allocate_pages(1, [(1, 8)], dtype.F32)
    ops.attention(q, cache, ids, ops.argmax(q), pages, scale=1.0)


ILLEGAL: dict[str, tuple[Callable[[Graph], Any], str]] = {
    "order": (lambda made: made.calls.reverse(), r"call 0 \(add\) uses .* before it is defined"),
    "missing": (lambda made: made.calls.pop(0), "before it is defined"),
    "defined twice": (lambda made: made.calls.append(made.calls[0]), "a second time"),
    "claimed spec": (claim_other_spec, "its rule gives"),
    "updated value": (update_a_value, "only state may be updated"),
    "host": (compute_what_the_host_reads, r"call 3 \(attention\) reads .* on the host, where only inputs are known"),
    "undefined output": (lambda made: made.calls.pop(), "which no call defines"),
}


@pytest.mark.parametrize("case", ILLEGAL, ids=str)
def test_illegal(case: str) -> None:
    change, message = ILLEGAL[case]
    with pytest.raises(GraphError, match=message):
        broken(change).check()


def test_an_output_that_is_a_constant_is_refused() -> None:
    constant = f32(2, 4)
    with pytest.raises(GraphError, match=r"output c is the constant Tensor.*keep it out"):
        trace(lambda x: {"y": ops.add(x, x), "c": constant}, {"x": Spec((TOKENS, 4), dtype.F32)})


def test_values_of_two_graphs_do_not_mix() -> None:
    other = graph().inputs["x"]
    with pytest.raises(GraphError, match="mixes values of two graphs"):
        trace(lambda x: {"y": ops.add(x, other)}, {"x": Spec((TOKENS, 4), dtype.F32)})


def test_inputs_have_names_of_their_own() -> None:
    made = graph()
    with pytest.raises(GraphError, match="input x is declared twice"):
        made.input("x", Spec((TOKENS,), dtype.F32))
