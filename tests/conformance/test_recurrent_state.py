"""Recurrent ops give the same bits however a sequence is cut into steps and batched."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.evals.conformance.conformance_case import On

ROWS = 37
Step = Callable[..., Any]


def convolution(on: On) -> tuple[np.ndarray, tuple[int, ...], Step]:
    """Rows, the shape of a state, and the op on some of the rows."""
    weight, bias = on.rows(4, 70), on.tensor(on.values(70))
    return on.values(ROWS, 70), (3, 70), lambda x, *held: ops.causal_conv1d(on.tensor(x), weight, bias, *held)


def delta(on: On, value_dim: int) -> tuple[np.ndarray, tuple[int, ...], Step]:
    heads, key_dim = 4, 16
    decay, bias = on.tensor(-np.exp(on.values(heads))), on.tensor(on.values(heads))
    width = 4 * key_dim + heads * value_dim

    def step(rows: np.ndarray, *held: Any) -> Any:
        parts = [on.tensor(np.ascontiguousarray(part)) for part in np.split(rows, [width, width + heads], axis=1)]
        return ops.gated_delta_rule(*parts, decay, bias, *held, key_heads=2, order="each")

    return on.values(ROWS, width + 2 * heads), (heads * key_dim, value_dim), step


def delta_by_row(on: On, key_dim: int, value_dim: int) -> tuple[np.ndarray, tuple[int, ...], Step]:
    heads = 2
    keys = heads * key_dim
    decay, bias = on.tensor(-np.exp(on.values(heads))), on.tensor(on.values(keys))
    ends = np.cumsum([keys, keys, heads, keys])

    def step(rows: np.ndarray, *held: Any) -> Any:
        parts = [on.tensor(np.ascontiguousarray(part)) for part in np.split(rows, ends, axis=1)]
        x, alpha, beta, own, values = parts
        return ops.gated_delta_rule(x, alpha, beta, decay, bias, *held, own, values, key_heads=heads, order="each")

    return on.values(ROWS, ends[-1] + heads * value_dim), (keys, value_dim), step


def faded(on: On, dim: int) -> tuple[np.ndarray, tuple[int, ...], Step]:
    kept = on.tensor(np.exp(-np.exp(on.values(3))))
    shape = 3 * dim, dim
    return on.values(ROWS, 9 * dim), shape, lambda x, *held: ops.lightning_attention(on.tensor(x), kept, *held)


def scan(on: On) -> tuple[np.ndarray, tuple[int, ...], Step]:
    heads, size, head_dim = 3, 16, 64
    decay, skip, bias = on.tensor(-np.exp(on.values(heads))), on.tensor(on.values(heads)), on.tensor(on.values(heads))
    width = heads * head_dim + 2 * size

    def step(rows: np.ndarray, *held: Any) -> Any:
        parts = [on.tensor(np.ascontiguousarray(part)) for part in np.split(rows, [width], axis=1)]
        return ops.ssm_scan(*parts, decay, skip, bias, *held, groups=1)

    return on.values(ROWS, width + heads), (heads * size, head_dim), step


def selective(on: On, channels: int) -> tuple[np.ndarray, tuple[int, ...], Step]:
    size = 5
    decay, skip = on.tensor(-np.exp(on.values(size, channels))), on.tensor(on.values(channels))
    ends = [channels, 2 * channels, 2 * channels + size]

    def step(rows: np.ndarray, *held: Any) -> Any:
        parts = [on.tensor(np.ascontiguousarray(part)) for part in np.split(rows, ends, axis=1)]
        return ops.selective_scan(*parts, decay, skip, *held)

    return on.values(ROWS, ends[-1] + size), (size, channels), step


def gated_unit(on: On, dim: int) -> tuple[np.ndarray, tuple[int, ...], Step]:
    width = 3 * dim
    vectors = on.tensor(on.values(width)), on.rows(3, dim), on.rows(3, dim)

    def step(rows: np.ndarray, *held: Any) -> Any:
        parts = [on.tensor(np.ascontiguousarray(part)) for part in np.split(rows, 3, axis=1)]
        return ops.gated_lru(*parts, *vectors, *held)

    return on.values(ROWS, 3 * width), (3, dim), step


def generalized(on: On, dim: int) -> tuple[np.ndarray, tuple[int, ...], Step]:
    width = 3 * dim
    vectors = on.tensor(on.values(width)), on.tensor(on.values(width)), on.rows(3, dim)

    def step(rows: np.ndarray, *held: Any) -> Any:
        parts = [on.tensor(np.ascontiguousarray(part)) for part in np.split(rows, 5, axis=1)]
        return ops.wkv7(*parts, *vectors, *held)[0]

    return on.values(ROWS, 5 * width), (width, dim), step


def faded_by_row(on: On, dim: int) -> tuple[np.ndarray, tuple[int, ...], Step]:
    width, bonus = 3 * dim, on.rows(3, dim)

    def step(rows: np.ndarray, *held: Any) -> Any:
        parts = [on.tensor(np.ascontiguousarray(part)) for part in np.split(rows, 4, axis=1)]
        return ops.wkv6(*parts, bonus, *held)

    return on.values(ROWS, 4 * width), (width, dim), step


def gated_linear(on: On, dim: int) -> tuple[np.ndarray, tuple[int, ...], Step]:
    width = 4 * dim
    ends = [width, 2 * width, 2 * width + 2 * dim]

    def step(rows: np.ndarray, *held: Any) -> Any:
        parts = [on.tensor(np.ascontiguousarray(part)) for part in np.split(rows, ends, axis=1)]
        return ops.gated_linear_attention(*parts, *held, heads=4, key_heads=2)

    return on.values(ROWS, 2 * width + 4 * dim), (width, dim), step


MADE = {
    "convolution": convolution,
    "delta": lambda on: delta(on, 64),
    "delta of odd heads": lambda on: delta(on, 10),
    "delta of rows that decay": lambda on: delta_by_row(on, 16, 64),
    "delta of odd rows that decay": lambda on: delta_by_row(on, 7, 10),
    "lightning": lambda on: faded(on, 64),
    "lightning of odd heads": lambda on: faded(on, 10),
    "gated unit": lambda on: gated_unit(on, 64),
    "gated unit of odd heads": lambda on: gated_unit(on, 10),
    "generalized": lambda on: generalized(on, 64),
    "generalized of odd heads": lambda on: generalized(on, 10),
    "gated linear": lambda on: gated_linear(on, 10),
    "faded by row": lambda on: faded_by_row(on, 64),
    "scan": scan,
    "selective": lambda on: selective(on, 128),
    "selective of odd channels": lambda on: selective(on, 70),
}


def run(on: On, made: Any, cuts: list[int], slots: int = 3, slot: int = 1) -> np.ndarray:
    """The results of all rows, and the state after them, of one sequence cut into steps."""
    rows, shape, step = made
    state = on.tensor(np.full((slots, *shape), np.nan, np.float32))  # what a slot held before does not matter
    found = []
    for first, last in zip([0, *cuts], [*cuts, ROWS], strict=True):
        whose = (on.ints([0, last - first]), on.ints([last]), on.ints([slot]))
        found.append(step(rows[first:last], state, *whose).numpy().reshape(-1))
    return np.concatenate([*found, state.numpy()[slot].reshape(-1)])


@pytest.mark.parametrize("name", MADE)
def test_cut_anywhere(cpu: Any, name: str) -> None:
    on = On(cpu, name)
    made = MADE[name](on)
    whole = run(on, made, [])
    assert np.isfinite(whole).all()
    for cuts in ([1], [2, 3, 4, 5, 20], list(range(1, ROWS)), [ROWS - 1]):
        assert np.array_equal(run(on, made, cuts), whole), cuts


@pytest.mark.parametrize("name", MADE)
def test_in_company(cpu: Any, name: str) -> None:
    """Three sequences in a step: one begins, and the one between the others has no rows."""
    on = On(cpu, name)
    rows, shape, step = made = MADE[name](on)
    whole = run(on, made, [])
    state = on.tensor(np.full((4, *shape), np.nan, np.float32))
    step(rows[:20], state, on.ints([0, 20]), on.ints([20]), on.ints([2]))
    other = rows[::-1][:8]
    both = np.concatenate([other, rows[20:]])
    whose = (on.ints([0, 8, 8, len(both)]), on.ints([8, 3, ROWS]), on.ints([0, 1, 2]))
    found = step(both, state, *whose).numpy()
    width = found.shape[1]
    assert np.array_equal(found[8:].reshape(-1), whole[20 * width : ROWS * width])
    assert np.array_equal(state.numpy()[2].reshape(-1), whole[ROWS * width :])
    assert np.isnan(state.numpy()[1]).all()
