"""Recurrent ops: the arguments they reject, and the values of their references at the limits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import OpError

BACKEND = ReferenceBackend()
TANH: dict[str, Any] = {"eps": 1e-5, "group": 3, "first": "norm", "activation": "tanh"}


def f32(*shape: int) -> Any:
    return BACKEND.tensor(np.zeros(shape, np.float32))


def i32(*numbers: int) -> Any:
    return BACKEND.tensor(np.array(numbers, np.int32))


def convolved(weight: Any = None, state: Any = None, whose: Any = None) -> Any:
    held = state if state is not None else f32(2, 3, 5)
    return ops.causal_conv1d(f32(4, 5), weight or f32(4, 5), None, held, *(whose or (i32(0, 4), i32(4), i32(1))))


def delta(width: int = 26, heads: int = 2, key_heads: int = 1, order: str = "each") -> Any:
    given = f32(4, width), f32(4, heads), f32(4, heads), f32(heads), f32(heads), f32(2, 2 * 3, 10)
    return ops.gated_delta_rule(*given, i32(0, 4), i32(4), i32(1), key_heads=key_heads, order=order)


def scanned(groups: int = 1, **limits: float) -> Any:
    given = f32(4, 26), f32(4, 2), f32(2), f32(2), f32(2), f32(2, 2 * 3, 10)
    return ops.ssm_scan(*given, i32(0, 4), i32(4), i32(1), groups=groups, **limits)


def normed(weight: Any, group: int = 3, first: str = "norm") -> Any:
    return ops.gated_rms_norm(f32(2, 6), f32(2, 6), weight, eps=1e-5, group=group, first=first)


def faded(width: int = 18, rows: int = 6) -> Any:
    return ops.lightning_attention(f32(4, width), f32(2), f32(2, rows, 3), i32(0, 4), i32(4), i32(1))


def delta_rule(keys: Any = None, values: Any = None, alpha: int = 6, **bounds: float) -> Any:
    given = f32(4, 6), f32(4, alpha), f32(4, 2), f32(2), f32(alpha), f32(2, 6, 10)
    options: dict[str, Any] = {"key_heads": 2, "order": "each", **bounds}
    return ops.gated_delta_rule(*given, i32(0, 4), i32(4), i32(1), keys, values, **options)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "taps' columns": (lambda: convolved(f32(4, 6)), "a column for each of x"),
    "one tap": (lambda: convolved(f32(1, 5), f32(2, 1, 5)), "two rows or more"),
    "what is kept": (lambda: convolved(state=f32(2, 4, 5)), r"must keep \[3, 5\] of each sequence"),
    "states": (lambda: convolved(whose=(i32(0, 4), i32(4), i32(1, 0))), "one element an element of lengths"),
    "rows without a sequence": (lambda: convolved(whose=(i32(0, 3), i32(4), i32(1))), "rise from 0 to the 4 rows"),
    "fewer positions": (lambda: convolved(whose=(i32(0, 4), i32(3), i32(1))), r"lengths\[0\] is less"),
    "no such slot": (lambda: convolved(whose=(i32(0, 4), i32(4), i32(2))), "between 0 and 1"),
    "a shared slot": (lambda: convolved(whose=(i32(0, 2, 4), i32(2, 2), i32(1, 1))), "a slot of its own for each"),
    "delta's width": (lambda: delta(27), "must have 26 columns: queries, keys, values"),
    "delta's groups": (lambda: delta(26, 2, 3), "are not a multiple of 3 key heads"),
    "delta's order": (lambda: delta(order="turns"), "'each' or 'all'"),
    "delta's keys": (lambda: delta_rule(f32(4, 6)), "given together, or neither"),
    "delta's values": (lambda: delta_rule(f32(4, 6), f32(4, 21)), r"values .* must be \[4, 20\]"),
    "delta's decays": (lambda: delta_rule(f32(4, 6), f32(4, 20), alpha=5), "2 columns, or one for each of 6 rows"),
    "delta's shares": (lambda: delta_rule(f32(4, 6), f32(4, 20), max_beta=0.0), "max_beta 0.0 must be above 0"),
    "delta's bound": (
        lambda: delta_rule(f32(4, 6), f32(4, 20), min_log_decay=0.5),
        "min_log_decay 0.5 must be below 0",
    ),
    "lightning's heads": (lambda: faded(rows=7), "must have 3 rows for each of 2 heads"),
    "lightning's width": (lambda: faded(17), "must have 18 columns: query, key and value"),
    "norm's activation": (lambda: ops.gated_rms_norm(f32(2, 6), f32(2, 6), f32(3), **TANH), "'silu' or 'sigmoid'"),
    "scan's groups": (lambda: scanned(3), "are not a multiple of 3 groups"),
    "time steps": (lambda: scanned(low=2.0, high=1.0), "must be a range of positive numbers"),
    "norm's groups": (lambda: normed(f32(3), 4), "whole groups of 4 columns"),
    "norm's weight": (lambda: normed(f32(6)), "one element a column of a group"),
    "norm's gate": (lambda: normed(f32(3), first="both"), "must be 'norm' or 'gate'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(OpError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_the_delta_rule_remembers_the_last_value_of_a_key() -> None:
    """Without decay and with a share near 1, what is written under a key is read by it; the last value counts."""
    key, values = np.array([0.6, 0.8, 0.0], np.float32), np.array([[1.0, -2.0], [3.0, 5.0]], np.float32)
    x = np.concatenate([np.tile(key, (2, 2)), values], axis=1)
    full, state = np.full((2, 1), 30.0, np.float32), BACKEND.tensor(np.ones((1, 3, 2), np.float32))
    given = [BACKEND.tensor(each) for each in (x, full, full, np.zeros(1, np.float32), np.zeros(1, np.float32))]
    found = ops.gated_delta_rule(*given, state, i32(0, 2), i32(2), i32(0), key_heads=1, order="each").numpy()
    assert np.allclose(found * 3**0.5, values, atol=1e-5)
    assert np.allclose(state.numpy()[0], key[:, None] * values[1], atol=1e-5)


def test_a_scan_is_a_sum_that_fades() -> None:
    """With time steps of one: y = sum of x by exp(-distance), plus what skips."""
    x = np.array([[2.0, 1.0, 1.0], [3.0, 1.0, 1.0]], np.float32)  # a value, what writes, what reads
    vectors = [np.array([number], np.float32) for number in (-1.0, 0.5, 0.0)]
    given = [BACKEND.tensor(each) for each in (x, np.zeros((2, 1), np.float32), *vectors)]
    options = {"groups": 1, "low": 1.0, "high": 1.0}
    found = ops.ssm_scan(*given, f32(1, 1, 1), i32(0, 2), i32(2), i32(0), **options).numpy()
    assert np.allclose(found[:, 0], [2 + 1, 3 + 2 * np.exp(-1) + 1.5])
