"""Cases of RWKV's ops."""

from collections.abc import Callable, Iterator
from typing import Any

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case
from sporelm.evals.conformance.recurrent import ROWS, stepped


def mixed(on: On, tokens: int, width: int, mixes: int, more: bool) -> Any:
    x, delta = on.rows(tokens, width), on.rows(tokens, width)
    vectors = tuple(on.tensor(on.values(width)) for _ in range(mixes))
    added = (tuple(on.rows(tokens, width) for _ in range(mixes)),) if more else ()
    return ops.mix_rows(x, delta, vectors, *added)


def blended(on: On, tokens: int, width: int, scale: float) -> Any:
    return ops.blend(*(on.rows(tokens, width, scale=scale) for _ in range(3)))


def grouped(on: On, tokens: int, group: int, groups: int, scale: float, alike: bool = False) -> Any:
    weight, bias = (on.tensor(on.values(group * (1 if alike else groups))) for _ in range(2))
    return ops.group_norm(on.rows(tokens, group * groups, scale=scale), weight, bias, group=group, eps=6.4e-4)


def generalized(on: On, heads: int, dim: int, value_dim: int, pooled: bool) -> Any:
    keys = heads * dim
    r, w, k, a = (on.rows(ROWS, keys) for _ in range(4))
    given = r, w, k, on.rows(ROWS, heads * value_dim), a
    vectors = on.tensor(on.values(keys)), on.tensor(on.values(keys)), on.rows(heads, dim)
    alone = []  # what rows add by themselves

    def call(*held: Any) -> Any:
        made, own = ops.wkv7(*given, *vectors, *held)
        alone.append(own.numpy())
        return made

    return *stepped(on, (keys, value_dim), call, pooled), *alone


def faded(on: On, heads: int, dim: int, value_dim: int, pooled: bool) -> Any:
    keys = heads * dim
    given = *(on.rows(ROWS, keys) for _ in range(3)), on.rows(ROWS, heads * value_dim), on.rows(heads, dim)
    return stepped(on, (keys, value_dim), lambda *held: ops.wkv6(*given, *held), pooled)


def gated(on: On, heads: int, dim: int, value_dim: int, pooled: bool) -> Any:
    keys = heads * dim
    given = on.rows(ROWS, 2 * keys), on.rows(ROWS, 2 * keys), on.rows(ROWS, keys), on.rows(ROWS, heads * value_dim)
    whole: dict[str, Any] = {"heads": 2 * heads, "key_heads": heads}
    return stepped(on, (2 * keys, value_dim), lambda *held: ops.gated_linear_attention(*given, *held, **whole), pooled)


def cases() -> Iterator[Case]:
    for tokens, width, mixes in ((1, 64, 6), (7, 70, 1), (33, 128, 3)):
        for more in (False, True):
            name = f"{mixes} of {width} x{tokens}{' more' * more}"
            yield case("mix_rows", name, mixed, tokens, width, mixes, more, rare=tokens == 33)
    for tokens, width, scale in ((1, 64, 1.0), (7, 70, 1.0), (3, 33, 60.0)):
        yield case("blend", f"{width} x{tokens} by {scale}", blended, tokens, width, scale, rare=scale > 1)
    for tokens, group, groups, scale in ((1, 64, 3, 1.0), (7, 10, 7, 1.0), (3, 33, 2, 100.0)):
        name = f"{groups} of {group} x{tokens} by {scale}"
        yield case("group_norm", name, grouped, tokens, group, groups, scale, rare=scale > 1)
        yield case("group_norm", f"{name} alike", grouped, tokens, group, groups, scale, True, rare=scale > 1)
    shapes: tuple[tuple[int, int, int], ...] = ((2, 64, 64), (3, 10, 10), (2, 7, 70))
    states: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("wkv7", generalized),
        ("wkv6", faded),
        ("gated_linear_attention", gated),
    )
    for op, work in states:
        for pooled in (False, True):
            for shape in shapes:
                name, rare = f"{' '.join(map(str, shape))}{' in a pool' * pooled}", pooled and shape[1] != 10
                yield case(op, name, work, *shape, pooled, rare=rare, common=shape[1] == 64)
