"""Cases of recurrent ops: two sequences, the second of them new."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.protocol import Backend
from sporelm.evals.conformance_case import ConformanceCase, random_values

ROWS = 7
HEADS = 4
GROUPS = 2
SIZE = 20  # of a head's key, query and value
STARTS = (0, 2, ROWS)
LENGTHS = (5, 5)
SLOTS = (2, 0)


def recurrent_cases() -> Iterator[ConformanceCase]:
    """Each op, with and without what is optional."""
    for bias in (False, True):
        yield ConformanceCase("causal_conv1d", "with a bias" * bias, partial(convolved, bias=bias))
    for order in ("each", "all"):
        yield ConformanceCase("gated_delta_rule", order, partial(delta, order=order))
    yield ConformanceCase("gated_delta_rule", "rows that decay, apart", delta_by_row)
    yield ConformanceCase(
        "gated_delta_rule", "rows that decay within bounds", partial(delta_by_row, min_log_decay=-3.0)
    )
    yield ConformanceCase("ssm_scan", "", scan)
    yield ConformanceCase("lightning_attention", "", faded)
    yield ConformanceCase("selective_scan", "", selected)
    yield ConformanceCase("gated_lru", "", gated_unit)
    yield ConformanceCase("wkv7", "", generalized)
    yield ConformanceCase("wkv6", "", faded_by_row)
    yield ConformanceCase("gated_linear_attention", "", gated_linear)
    yield ConformanceCase("mix_rows", "", partial(mixed, more=False))
    yield ConformanceCase("mix_rows", "more", partial(mixed, more=True))
    yield ConformanceCase("blend", "", blended)
    yield ConformanceCase("group_norm", "", grouped)
    for first in ("norm", "gate"):
        yield ConformanceCase("gated_rms_norm", f"{first} first", partial(gated_norm, first=first))
    yield ConformanceCase("gated_rms_norm", "a sigmoid", partial(gated_norm, first="norm", activation="sigmoid"))


def _after(backend: Backend, state: np.ndarray, call: Any) -> Any:
    """The result, and the states after it."""
    held = backend.tensor(state)
    whose = [backend.tensor(np.array(numbers, np.int32)) for numbers in (STARTS, LENGTHS, SLOTS)]
    return call(held, *whose), held


def convolved(backend: Backend, *, bias: bool) -> Any:
    width = 3 * SIZE
    x = backend.tensor(random_values(ROWS, width))
    weight = backend.tensor(random_values(4, width))
    added = backend.tensor(random_values(width)) if bias else None
    return _after(backend, random_values(3, 3, width), lambda *held: ops.causal_conv1d(x, weight, added, *held))


def _vectors(backend: Backend) -> list[Any]:
    """A decay for each head, and two other numbers."""
    return [
        backend.tensor(each)
        for each in (-np.exp(random_values(HEADS)), random_values(HEADS, seed=1), random_values(HEADS, seed=2))
    ]


def delta(backend: Backend, *, order: str) -> Any:
    given = [backend.tensor(random_values(ROWS, n)) for n in ((2 * GROUPS + HEADS) * SIZE, HEADS, HEADS)]
    decay, bias, _ = _vectors(backend)
    return _after(
        backend,
        random_values(3, HEADS * SIZE, SIZE),
        lambda *held: ops.gated_delta_rule(*given, decay, bias, *held, key_heads=GROUPS, order=order),
    )


def delta_by_row(backend: Backend, *, min_log_decay: float = 0.0) -> Any:
    """Queries, keys and values apart, each channel of the keys with a decay of its own."""
    x, alpha, keys, rows = (backend.tensor(random_values(ROWS, HEADS * SIZE, seed=n)) for n in range(4))
    beta = backend.tensor(random_values(ROWS, HEADS))
    decay = backend.tensor(-np.exp(random_values(HEADS)))
    given = x, alpha, beta, decay, backend.tensor(random_values(HEADS * SIZE))
    options: dict[str, Any] = {"key_heads": HEADS, "order": "each", "min_log_decay": min_log_decay}
    return _after(
        backend,
        random_values(3, HEADS * SIZE, SIZE),
        lambda *held: ops.gated_delta_rule(*given, *held, keys, rows, **options),
    )


def scan(backend: Backend) -> Any:
    given = [backend.tensor(random_values(ROWS, n)) for n in ((2 * GROUPS + HEADS) * SIZE, HEADS)]
    return _after(
        backend,
        random_values(3, HEADS * SIZE, SIZE),
        lambda *held: ops.ssm_scan(*given, *_vectors(backend), *held, groups=GROUPS),
    )


def selected(backend: Backend) -> Any:
    width = HEADS * SIZE
    given = [backend.tensor(random_values(ROWS, n, seed=n)) for n in (width, width, GROUPS, GROUPS)]
    decay = backend.tensor(-np.exp(random_values(GROUPS, width)))
    skip = backend.tensor(random_values(width, seed=1))
    return _after(
        backend, random_values(3, GROUPS, width), lambda *held: ops.selective_scan(*given, decay, skip, *held)
    )


def gated_unit(backend: Backend) -> Any:
    given = [backend.tensor(random_values(ROWS, HEADS * SIZE, seed=n)) for n in range(3)]
    biases = [backend.tensor(random_values(HEADS, SIZE, seed=n)) for n in range(2)]
    decay = backend.tensor(random_values(HEADS * SIZE))
    return _after(backend, random_values(3, HEADS, SIZE), lambda *held: ops.gated_lru(*given, decay, *biases, *held))


def faded(backend: Backend) -> Any:
    x = backend.tensor(random_values(ROWS, HEADS * 3 * SIZE))
    kept = backend.tensor(np.exp(-np.exp(random_values(HEADS))))
    return _after(backend, random_values(3, HEADS * SIZE, SIZE), lambda *held: ops.lightning_attention(x, kept, *held))


def generalized(backend: Backend) -> Any:
    """RWKV-7's rule; what rows add by themselves goes before the states."""
    width = HEADS * SIZE
    given = [backend.tensor(random_values(ROWS, width, seed=n)) for n in range(5)]
    vectors = [backend.tensor(random_values(width, seed=n)) for n in range(2)]
    bonus = backend.tensor(random_values(HEADS, SIZE))
    (made, alone), held = _after(
        backend, random_values(3, width, SIZE), lambda *held: ops.wkv7(*given, *vectors, bonus, *held)
    )
    return made, alone, held


def faded_by_row(backend: Backend) -> Any:
    """RWKV-6's state."""
    width = HEADS * SIZE
    given = [backend.tensor(random_values(ROWS, width, seed=n)) for n in range(4)]
    bonus = backend.tensor(random_values(HEADS, SIZE))
    return _after(backend, random_values(3, width, SIZE), lambda *held: ops.wkv6(*given, bonus, *held))


def gated_linear(backend: Backend) -> Any:
    """QRWKV6's state."""
    width = HEADS * SIZE
    few = GROUPS * SIZE
    given = [backend.tensor(random_values(ROWS, n, seed=seed)) for seed, n in enumerate((width, width, few, few))]
    whole: dict[str, Any] = {"heads": HEADS, "key_heads": GROUPS}
    return _after(
        backend, random_values(3, width, SIZE), lambda *held: ops.gated_linear_attention(*given, *held, **whole)
    )


def mixed(backend: Backend, *, more: bool) -> Any:
    x, delta, *added = (backend.tensor(random_values(ROWS, 37, seed=n)) for n in range(4))
    mixes = tuple(backend.tensor(random_values(37, seed=n)) for n in range(2))
    return ops.mix_rows(x, delta, mixes, tuple(added)) if more else ops.mix_rows(x, delta, mixes)


def blended(backend: Backend) -> Any:
    return ops.blend(*(backend.tensor(random_values(ROWS, 37, seed=n)) for n in range(3)))


def grouped(backend: Backend) -> Any:
    x, weight, bias = (backend.tensor(random_values(*shape)) for shape in ((ROWS, 96), (96,), (96,)))
    return ops.group_norm(x, weight, bias, group=48, eps=1e-5)


def gated_norm(backend: Backend, *, first: str, activation: str = "silu") -> Any:
    x, gate, weight = (backend.tensor(random_values(*shape, seed=3)) for shape in ((ROWS, 96), (ROWS, 96), (2, 48)))
    return ops.gated_rms_norm(x, gate, weight, eps=1e-6, group=48, first=first, activation=activation)
