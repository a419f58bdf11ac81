"""Cases of experts: routing of every kind, products in every format with the pairs spread in every way, sums."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import EACH_KIND, FORMAT_NAMES, Case, On, case, width_of

TOKENS = (1, 7, 130)  # one; groups of few pairs; groups of more than any tile and block of many
LIGHT = ("F32", "Q4_1")  # formats whose kernels are soon compiled, one of floats and one of integers
SPREADS = ("even", "skewed", "same")
ROUTES: dict[str, dict[str, Any]] = {
    "softmax": {"k": 4},
    "softmax renormalized": {"k": 4, "renormalize": True, "epsilon": 1e-9, "scale": 1.5},
    "of chosen": {"k": 4, "scores": "softmax_of_chosen"},
    "of near": {"k": 4, "scores": "softmax_of_near", "near": 0.3},
    "sigmoid of chosen": {"k": 4, "scores": "sigmoid_of_chosen", "scale": 1.5},
    "sigmoid": {"k": 4, "scores": "sigmoid", "renormalize": True, "scale": 2.5},
    "groups by max": {"k": 4, "groups": 4, "top_groups": 2, "scale": 16.0},
    "groups by two": {
        "k": 6,
        "scores": "sigmoid",
        "renormalize": True,
        "epsilon": 1e-20,
        "scale": 2.5,
        "groups": 5,
        "top_groups": 3,
        "group_score": "sum_of_two",
    },
}
EXPERTS = (20, 60, 260)  # no multiple of any vector


def routed(on: On, tokens: int, experts: int, kind: str, biased: bool) -> Any:
    bias = (on.tensor(on.values(experts, scale=0.1)),) if biased else ()
    return ops.route(on.rows(tokens, experts), *bias, **ROUTES[kind])


def routed_ties(on: On, kind: str, values: tuple[float, ...]) -> Any:
    """Logits of few different values: equals go to the lowest id."""
    logits = on.random.choice(np.array(values, np.float32), (33, 40))
    return ops.route(on.tensor(logits), **ROUTES[kind])


def routed_nan(on: On, kind: str) -> Any:
    """NaN in one row's logits, infinity in another's, a row far below 0: the other rows do not know."""
    logits = on.values(7, 20)
    logits[2, 5], logits[3, 1], logits[4] = np.nan, -np.inf, -50
    return ops.route(on.tensor(logits), **ROUTES[kind])


def spread(on: On, tokens: int, experts: int, k: int, how: str) -> np.ndarray:
    """k different experts a token: any; one that all want, second; or the same ones for all, the others idle."""
    ids = on.random.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)[:, :k]
    if how == "same":
        return np.tile(ids[:1], (tokens, 1))
    if how == "skewed" and k > 1:
        ids = np.where(ids == experts - 2, ids[:, 1:2], ids)
        ids[:, 1] = experts - 2
    return ids


def matrices(on: On, format_name: str, experts: int, out: int, width: int) -> Any:
    return on.experts(format_name, experts, out, width)


def product(on: On, format_name: str, shape: tuple[int, int, int], tokens: int, k: int, how: str, extra: str) -> Any:
    """`extra`: "each" has a row of x for each pair, "bias" adds one."""
    experts, out, width = shape
    ids = spread(on, tokens, experts, k, how)
    weight = matrices(on, format_name, experts, out, width)
    x = on.tensor(on.values(*((tokens, k, width) if extra == "each" else (tokens, width))))
    bias = (on.rows(experts, out),) if extra == "bias" else ()
    return ops.linear_experts(x, weight, on.ints(ids), *bias)


def gated(on: On, format_name: str, shape: tuple[int, int, int], tokens: int, k: int, how: str) -> Any:
    ids = on.ints(spread(on, tokens, shape[0], k, how))
    gate, up = (matrices(on, format_name, *shape) for _ in range(2))
    return ops.linear_experts_silu_mul(on.rows(tokens, shape[2]), gate, up, ids)


def with_nan(on: On, format_name: str, tokens: int) -> Any:
    """NaN in one token's row: it shows in that token's results alone."""
    width = width_of(format_name, 3)
    x = on.values(tokens, width)
    x[tokens // 2, 20] = np.nan
    ids = on.ints(spread(on, tokens, 5, 2, "skewed"))
    return ops.linear_experts(on.tensor(x), matrices(on, format_name, 5, 33, width), ids)


def idle(on: On, tokens: int, k: int) -> Any:
    """Of nine experts five compute; of the first row none does."""
    ids = spread(on, tokens, 9, k, "any").astype(np.int32)
    ids[0] = np.maximum(ids[0], 5)
    return ops.split_zero_experts(on.rows(tokens, k), on.tensor(ids), experts=5)


def combined(on: On, tokens: int, k: int, width: int) -> Any:
    return ops.combine_experts(on.tensor(on.values(tokens, k, width)), on.rows(tokens, k))


def with_bias(on: On, tokens: int, k: int, width: int) -> Any:
    """The sum of experts and one bias."""
    bias = on.tensor(on.values(1, width)[0].copy())
    return ops.combine_experts(on.tensor(on.values(tokens, k, width)), on.rows(tokens, k), bias)


def of_one(on: On, tokens: int, width: int) -> Any:
    """A shared expert's gate."""
    weights, _ = ops.route(on.rows(tokens, 1), k=1, scores="sigmoid")
    return ops.combine_experts(on.rows(tokens, width), weights)


def of_three(on: On, op: Any, tokens: int, width: int, **options: Any) -> Any:
    """An op of elements, on three rows a token."""
    x, y = (on.tensor(on.values(tokens, 3, width, scale=4)) for _ in range(2))
    return op(x, y, **options)


def rounded(on: On, format_name: str) -> Any:
    """Rounded rows for each pair, multiplied as they are."""
    width = width_of(format_name, 2)
    x = ops.quantize_rows(on.tensor(on.values(7, 2, width)), activation=on.activation(format_name))
    return ops.linear_experts(x, matrices(on, format_name, 4, 33, width), on.ints(spread(on, 7, 4, 2, "even")))


def cases() -> Iterator[Case]:
    yield from routing_cases()
    for format_name in FORMAT_NAMES:
        yield from format_cases(format_name)
    for tokens in (1, 7, 33):
        for k, width in ((1, 1), (2, 33), (8, 96), (10, 320)):
            yield case("combine_experts", f"{k}x{width} x{tokens}", combined, tokens, k, width, common=tokens == 7)
        for k in (1, 4):
            yield case("split_zero_experts", f"{k} x{tokens}", idle, tokens, k, common=tokens == 7)
        yield case("combine_experts", f"of one x{tokens}", of_one, tokens, 90)
        yield case("combine_experts", f"with a bias x{tokens}", with_bias, tokens, 3, 70, common=tokens == 7)
        yield case("clamped_swiglu", f"x{tokens}", _clamped, tokens, 90)
        yield case("clamped_swiglu", f"3 each x{tokens}", _clamped_each, tokens, 33)
        yield case("silu_mul", f"3 each x{tokens}", of_three, ops.silu_mul, tokens, 33)
        yield case("activate_mul", f"3 each x{tokens}", _gelu_each, tokens, 33)
        yield case("activate", f"3 each x{tokens}", _squared_each, tokens, 33)
    yield case("linear_experts", "Q8_0 rounded rows", rounded, "Q8_0")
    yield case("linear_experts", "Q4_K rounded rows", rounded, "Q4_K", rare=True)


def _clamped(on: On, tokens: int, width: int) -> Any:
    gate, up = on.rows(tokens, width, scale=6), on.rows(tokens, width, scale=6)
    return ops.clamped_swiglu(gate, up, alpha=1.702, limit=7.0)


def _clamped_each(on: On, tokens: int, width: int) -> Any:
    return of_three(on, ops.clamped_swiglu, tokens, width, alpha=1.702, limit=7.0)


def _squared_each(on: On, tokens: int, width: int) -> Any:
    return ops.activate(on.tensor(on.values(tokens, 3, width, scale=4)), kind="relu_squared")


def _gelu_each(on: On, tokens: int, width: int) -> Any:
    return of_three(on, ops.activate_mul, tokens, width, kind="gelu_tanh")


def routing_cases() -> Iterator[Case]:
    for kind in ROUTES:
        for biased in (False, True):
            for tokens in (1, 7, 33):
                for experts in EXPERTS:
                    name = f"{kind} {'bias ' * biased}{experts} x{tokens}"
                    main = tokens == 7 and not biased
                    yield case("route", name, routed, tokens, experts, kind, biased, common=main, rare=tokens == 33)
        yield case("route", f"{kind} NaN", routed_nan, kind, common=False)
        yield case("route", f"{kind} ties", routed_ties, kind, (0.5, 1.0, -2.0))
        yield case("route", f"{kind} zeros", routed_ties, kind, (0.0, -0.0))


def format_cases(format_name: str) -> Iterator[Case]:
    """Each format in every bucket, which are as many kernels: by default those for many, of each kind of panels; they
    hold the way of few pairs too."""
    light, each = format_name in LIGHT, format_name in EACH_KIND
    width = width_of(format_name, 3)
    shapes = (((5, 33, width), 2), ((4, 50, width_of(format_name, 1)), 3), ((3, 7, width), 1))
    for tokens in TOKENS:
        most = tokens == TOKENS[-1]
        for (shape, k), how in itertools.product(shapes, SPREADS):
            main = how == "skewed" and k == 2
            name = f"{format_name} {shape} {k} {how} x{tokens}"
            marks = {"common": main and light, "rare": not (light if main or most else light and k == 2)}
            if main and each:
                marks["rare"] = not (light or most)
            yield case("linear_experts", name, product, format_name, shape, tokens, k, how, "", **marks)
        for extra in ("each", "bias"):
            name = f"{format_name} {extra} x{tokens}"
            marks = {"common": format_name == "Q4_1" and most, "rare": not light}
            yield case(
                "linear_experts", name, product, format_name, (5, 33, width), tokens, 2, "skewed", extra, **marks
            )
        for how in SPREADS:
            name, main = f"{format_name} {how} x{tokens}", how == "skewed"
            marks = {
                "common": main and format_name == "Q4_1",
                "rare": not (light or (main and most and format_name == "Q4_K")),
            }
            yield case("linear_experts_silu_mul", name, gated, format_name, (5, 33, width), tokens, 2, how, **marks)
        yield case(
            "linear_experts",
            f"{format_name} NaN x{tokens}",
            with_nan,
            format_name,
            tokens,
            common=False,
            rare=not light,
        )
