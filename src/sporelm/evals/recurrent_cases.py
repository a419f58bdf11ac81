"""Cases of what carries a state from row to row: two sequences, one of which begins."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.backend import Backend
from sporelm.evals.case import Case, values

ROWS, HEADS, GROUPS, SIZE = 7, 4, 2, 20  # of each of two vectors of a head, and of a value
STARTS, LENGTHS, SLOTS = (0, 2, ROWS), (5, 5), (2, 0)


def recurrent_cases() -> Iterator[Case]:
    """Each op, with and without what is optional."""
    for bias in (False, True):
        yield Case("causal_conv1d", "with a bias" * bias, partial(convolved, bias=bias))
    for order in ("each", "all"):
        yield Case("gated_delta_rule", order, partial(delta, order=order))
    yield Case("gated_delta_rule", "rows that decay, apart", delta_by_row)
    yield Case("gated_delta_rule", "rows that decay within bounds", partial(delta_by_row, least=-3.0))
    yield Case("ssm_scan", "", scan)
    yield Case("lightning_attention", "", faded)
    yield Case("selective_scan", "", selected)
    yield Case("gated_lru", "", gated_unit)
    yield Case("wkv7", "", generalized)
    yield Case("wkv6", "", faded_by_row)
    yield Case("gated_linear_attention", "", gated_linear)
    yield Case("mix_rows", "", partial(mixed, more=False))
    yield Case("mix_rows", "more", partial(mixed, more=True))
    yield Case("blend", "", blended)
    yield Case("group_norm", "", grouped)
    for first in ("norm", "gate"):
        yield Case("gated_rms_norm", f"{first} first", partial(gated_norm, first=first))
    yield Case("gated_rms_norm", "a sigmoid", partial(gated_norm, first="norm", activation="sigmoid"))


def _after(backend: Backend, state: np.ndarray, call: Any) -> Any:
    """The result, and the states after it."""
    held = backend.tensor(state)
    whose = [backend.tensor(np.array(numbers, np.int32)) for numbers in (STARTS, LENGTHS, SLOTS)]
    return call(held, *whose), held


def convolved(backend: Backend, *, bias: bool) -> Any:
    width = 3 * SIZE
    x, weight = backend.tensor(values(ROWS, width)), backend.tensor(values(4, width))
    added = backend.tensor(values(width)) if bias else None
    return _after(backend, values(3, 3, width), lambda *held: ops.causal_conv1d(x, weight, added, *held))


def _vectors(backend: Backend) -> list[Any]:
    """A decay for each head, and two other numbers."""
    return [backend.tensor(each) for each in (-np.exp(values(HEADS)), values(HEADS, seed=1), values(HEADS, seed=2))]


def delta(backend: Backend, *, order: str) -> Any:
    given = [backend.tensor(values(ROWS, n)) for n in ((2 * GROUPS + HEADS) * SIZE, HEADS, HEADS)]
    decay, bias, _ = _vectors(backend)
    return _after(
        backend,
        values(3, HEADS * SIZE, SIZE),
        lambda *held: ops.gated_delta_rule(*given, decay, bias, *held, key_heads=GROUPS, order=order),
    )


def delta_by_row(backend: Backend, *, least: float = 0.0) -> Any:
    """Queries, keys and values apart, each channel of the keys with a decay of its own."""
    x, alpha, keys, rows = (backend.tensor(values(ROWS, HEADS * SIZE, seed=n)) for n in range(4))
    beta, decay = backend.tensor(values(ROWS, HEADS)), backend.tensor(-np.exp(values(HEADS)))
    given = x, alpha, beta, decay, backend.tensor(values(HEADS * SIZE))
    return _after(
        backend,
        values(3, HEADS * SIZE, SIZE),
        lambda *held: ops.gated_delta_rule(*given, *held, keys, rows, key_heads=HEADS, order="each", least=least),
    )


def scan(backend: Backend) -> Any:
    given = [backend.tensor(values(ROWS, n)) for n in ((2 * GROUPS + HEADS) * SIZE, HEADS)]
    return _after(
        backend,
        values(3, HEADS * SIZE, SIZE),
        lambda *held: ops.ssm_scan(*given, *_vectors(backend), *held, groups=GROUPS),
    )


def selected(backend: Backend) -> Any:
    width = HEADS * SIZE
    given = [backend.tensor(values(ROWS, n, seed=n)) for n in (width, width, GROUPS, GROUPS)]
    decay, skip = backend.tensor(-np.exp(values(GROUPS, width))), backend.tensor(values(width, seed=1))
    return _after(backend, values(3, GROUPS, width), lambda *held: ops.selective_scan(*given, decay, skip, *held))


def gated_unit(backend: Backend) -> Any:
    given = [backend.tensor(values(ROWS, HEADS * SIZE, seed=n)) for n in range(3)]
    biases = [backend.tensor(values(HEADS, SIZE, seed=n)) for n in range(2)]
    decay = backend.tensor(values(HEADS * SIZE))
    return _after(backend, values(3, HEADS, SIZE), lambda *held: ops.gated_lru(*given, decay, *biases, *held))


def faded(backend: Backend) -> Any:
    x, kept = backend.tensor(values(ROWS, HEADS * 3 * SIZE)), backend.tensor(np.exp(-np.exp(values(HEADS))))
    return _after(backend, values(3, HEADS * SIZE, SIZE), lambda *held: ops.lightning_attention(x, kept, *held))


def generalized(backend: Backend) -> Any:
    """RWKV-7's rule; what rows add by themselves goes before the states."""
    width = HEADS * SIZE
    given = [backend.tensor(values(ROWS, width, seed=n)) for n in range(5)]
    vectors = [backend.tensor(values(width, seed=n)) for n in range(2)]
    bonus = backend.tensor(values(HEADS, SIZE))
    (made, alone), held = _after(
        backend, values(3, width, SIZE), lambda *held: ops.wkv7(*given, *vectors, bonus, *held)
    )
    return made, alone, held


def faded_by_row(backend: Backend) -> Any:
    """RWKV-6's state."""
    width = HEADS * SIZE
    given = [backend.tensor(values(ROWS, width, seed=n)) for n in range(4)]
    bonus = backend.tensor(values(HEADS, SIZE))
    return _after(backend, values(3, width, SIZE), lambda *held: ops.wkv6(*given, bonus, *held))


def gated_linear(backend: Backend) -> Any:
    """QRWKV6's state."""
    width, few = HEADS * SIZE, GROUPS * SIZE
    given = [backend.tensor(values(ROWS, n, seed=seed)) for seed, n in enumerate((width, width, few, few))]
    whole: dict[str, Any] = {"heads": HEADS, "key_heads": GROUPS}
    return _after(backend, values(3, width, SIZE), lambda *held: ops.gated_linear_attention(*given, *held, **whole))


def mixed(backend: Backend, *, more: bool) -> Any:
    x, delta, *added = (backend.tensor(values(ROWS, 37, seed=n)) for n in range(4))
    mixes = tuple(backend.tensor(values(37, seed=n)) for n in range(2))
    return ops.mix_rows(x, delta, mixes, tuple(added)) if more else ops.mix_rows(x, delta, mixes)


def blended(backend: Backend) -> Any:
    return ops.blend(*(backend.tensor(values(ROWS, 37, seed=n)) for n in range(3)))


def grouped(backend: Backend) -> Any:
    x, weight, bias = (backend.tensor(values(*shape)) for shape in ((ROWS, 96), (96,), (96,)))
    return ops.group_norm(x, weight, bias, group=48, eps=1e-5)


def gated_norm(backend: Backend, *, first: str, activation: str = "silu") -> Any:
    x, gate, weight = (backend.tensor(values(*shape, seed=3)) for shape in ((ROWS, 96), (ROWS, 96), (2, 48)))
    return ops.gated_rms_norm(x, gate, weight, eps=1e-6, group=48, first=first, activation=activation)
