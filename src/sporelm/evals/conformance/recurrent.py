"""Cases of ops that carry a state from row to row, and of the norm that follows them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case

# rows of each sequence in the step, the positions that it has after it, its slot: one begins, one has no rows
STARTS, LENGTHS, SLOTS = (0, 2, 2, 8, 9), (2, 5, 10, 7), (3, 0, 1, 4)
ROWS, COUNT = 9, 5
DELTA_SHAPES: tuple[tuple[Any, ...], ...] = (
    (2, 4, 16, 64, "each"),
    (2, 6, 10, 10, "all"),
    (1, 2, 128, 128, "all"),
    (3, 3, 7, 70, "each"),
)
APART: tuple[tuple[int, ...], ...] = ((2, 4, 16, 64), (4, 4, 10, 10), (2, 2, 128, 128), (3, 3, 7, 70))
Call = Callable[..., Any]


def stepped(on: On, shape: tuple[int, ...], call: Call, pooled: bool) -> Any:
    """The result, and the states after it, of `call` with a state [COUNT, *shape]: a tensor, or of a pool."""
    values = on.values(COUNT, *shape)
    whose = [on.ints(numbers) for numbers in (STARTS, LENGTHS, SLOTS)]
    if not pooled:
        state = on.tensor(values)
        return call(state, *whose).numpy(), state.numpy()
    pool = on.backend.allocate_states(COUNT, [[(3,), shape, (5,)]])  # neighbours on both sides
    before, behind = (np.ones((COUNT, width), np.float32) for width in (3, 5))
    on.backend.import_states(pool, range(COUNT), [before, values, behind])
    result = call(pool[0][1], *whose).numpy()
    held = on.backend.export_states(pool, range(COUNT))
    on.backend.free_states(pool)
    return result, *held


def convolved(on: On, channels: int, taps: int, bias: bool, silu: bool, pooled: bool) -> Any:
    x, weight = on.rows(ROWS, channels), on.rows(taps, channels)
    added = on.tensor(on.values(channels)) if bias else None
    return stepped(
        on, (taps - 1, channels), lambda *held: ops.causal_conv1d(x, weight, added, *held, silu=silu), pooled
    )


def decays(on: On, heads: int) -> Any:
    return on.tensor(-np.exp(on.values(heads)))


def delta(on: On, key_heads: int, heads: int, key_dim: int, value_dim: int, order: str, pooled: bool) -> Any:
    x, alpha, beta = (on.rows(ROWS, n) for n in (2 * key_heads * key_dim + heads * value_dim, heads, heads))
    given = x, alpha, beta, decays(on, heads), on.tensor(on.values(heads))
    options: dict[str, Any] = {"key_heads": key_heads, "order": order}
    return stepped(
        on, (heads * key_dim, value_dim), lambda *held: ops.gated_delta_rule(*given, *held, **options), pooled
    )


def delta_by_row(
    on: On, key_heads: int, heads: int, key_dim: int, value_dim: int, decays_each: bool, min_log_decay: float = 0.0
) -> Any:
    """Queries, keys and values apart; a decay for each row of a state, or for each head."""
    widths = key_heads * key_dim, key_heads * key_dim, heads * value_dim
    x, keys, values = (on.rows(ROWS, width) for width in widths)
    count = heads * key_dim if decays_each else heads
    given = x, on.rows(ROWS, count), on.rows(ROWS, heads), decays(on, heads), on.tensor(on.values(count))
    options: dict[str, Any] = {"key_heads": key_heads, "order": "each", "max_beta": 2.0, "min_log_decay": min_log_decay}
    return stepped(
        on,
        (heads * key_dim, value_dim),
        lambda *held: ops.gated_delta_rule(*given, *held, keys, values, **options),
        True,
    )


def scanned(on: On, groups: int, heads: int, size: int, head_dim: int, limits: dict[str, float], pooled: bool) -> Any:
    x, dt = on.rows(ROWS, heads * head_dim + 2 * groups * size), on.rows(ROWS, heads, scale=3.0)
    given = x, dt, decays(on, heads), on.tensor(on.values(heads)), on.tensor(on.values(heads))
    return stepped(
        on, (heads * size, head_dim), lambda *held: ops.ssm_scan(*given, *held, groups=groups, **limits), pooled
    )


def faded(on: On, heads: int, dim: int, pooled: bool) -> Any:
    x, kept = on.rows(ROWS, heads * 3 * dim), on.tensor(np.exp(-np.exp(on.values(heads))))
    return stepped(on, (heads * dim, dim), lambda *held: ops.lightning_attention(x, kept, *held), pooled)


def gated_norm(
    on: On, tokens: int, group: int, groups: int, own: bool, first: str, scale: float, activation: str = "silu"
) -> Any:
    x, gate = (on.rows(tokens, group * groups, scale=scale) for _ in range(2))
    weight = on.tensor(on.values(groups, group) if own else on.values(group))
    return ops.gated_rms_norm(x, gate, weight, eps=1e-6, group=group, first=first, activation=activation)


def cases() -> Iterator[Case]:
    for pooled in (False, True):
        where = " in a pool" * pooled
        for channels, taps, bias, silu in ((64, 4, False, True), (70, 4, True, True), (7, 2, True, False)):
            name = f"{taps} taps of {channels}{' bias' * bias}{' silu' * silu}{where}"
            rare = pooled and channels != 70
            yield case("causal_conv1d", name, convolved, channels, taps, bias, silu, pooled, rare=rare)
        for shape in DELTA_SHAPES:
            name, rare = f"{' '.join(map(str, shape))}{where}", pooled and shape[2] != 7
            yield case("gated_delta_rule", name, delta, *shape, pooled, rare=rare, common=shape[2] != 16)
    for apart in APART:
        for decays_each in (True, False):
            name = f"{' '.join(map(str, apart))} apart, decays of each {'row' if decays_each else 'head'}"
            rare = not decays_each and apart[2] != 7
            yield case("gated_delta_rule", name, delta_by_row, *apart, decays_each, rare=rare, common=apart[2] == 7)
    for decays_each in (True, False):
        name = f"3 3 7 70 within bounds, decays of each {'row' if decays_each else 'head'}"
        yield case("gated_delta_rule", name, delta_by_row, 3, 3, 7, 70, decays_each, -5.0, rare=not decays_each)
    for pooled in (False, True):
        where = " in a pool" * pooled
        for groups, heads, size, head_dim in ((2, 4, 16, 64), (1, 3, 7, 10), (3, 3, 128, 70)):
            limits = {"low": 0.1, "high": 1.5} if groups == 1 else {}
            name, rare = f"{groups} {heads} {size} {head_dim}{where}", pooled and size != 7
            yield case("ssm_scan", name, scanned, groups, heads, size, head_dim, limits, pooled, rare=rare)
        for heads, dim in ((2, 16), (3, 10), (1, 128)):
            name = f"{heads} of {dim}{where}"
            yield case("lightning_attention", name, faded, heads, dim, pooled, rare=pooled and dim != 10)
    for first in ("norm", "gate"):
        for tokens, group, groups in ((1, 16, 3), (7, 10, 5), (33, 70, 1)):
            own = first == "gate"
            name = f"{first} first, {groups} of {group} x{tokens}"
            yield case("gated_rms_norm", name, gated_norm, tokens, group, groups, own, first, 1.0)
        yield case("gated_rms_norm", f"{first} first, a sigmoid", gated_norm, 7, 37, 2, False, first, 1.0, "sigmoid")
        yield case("gated_rms_norm", f"{first} first, far values", gated_norm, 2, 33, 2, True, first, 100.0)
