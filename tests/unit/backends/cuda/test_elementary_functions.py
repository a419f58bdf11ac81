"""Elementary functions of kernels against float64, under Triton's interpreter."""

from math import erfc
from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.recurrent_ops import require_interpreter

COUNT = 1 << 14
LARGEST_ERRORS = {  # of the result, in units of 2^-24
    "exp": 4.0,  # that ADR 0046 allows are 8
    "log": 4.0,
    "log1p_of_share": 4.0,
    "expm1": 10.0,
    "tanh": 4.0,
}


def evaluate(name: str, x: np.ndarray) -> np.ndarray:
    """Return a function of float32 numbers, as kernels compute it."""
    import torch
    import triton
    import triton.language as tl

    from sporelm.backends.cuda import elementary_functions

    function = elementary_functions.exp_times_power if name == "exp" else getattr(elementary_functions, name)

    @triton.jit
    def kernel(x, out, FUNCTION: tl.constexpr, HAS_POWER: tl.constexpr, BLOCK: tl.constexpr):
        place = tl.arange(0, BLOCK)
        values = tl.load(x + place)
        tl.store(out + place, FUNCTION(values, 0) if HAS_POWER else FUNCTION(values))

    given = torch.from_numpy(x.astype(np.float32))
    out = torch.empty_like(given)
    kernel[(1,)](given, out, FUNCTION=function, HAS_POWER=name == "exp", BLOCK=len(given))
    return out.numpy().astype(np.float64)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("exp", -64, 0), ("log", 1e-6, 1e6), ("log1p_of_share", 1e-30, 1), ("expm1", -30, 2), ("tanh", -20, 20)],
)
def test_relative_errors_are_a_few_roundings(name: str, low: float, high: float) -> None:
    require_interpreter()
    random = np.random.default_rng(1)
    exact: Any = {"exp": np.exp, "log": np.log, "log1p_of_share": np.log1p, "expm1": np.expm1, "tanh": np.tanh}[name]
    wide = random.uniform(low, high, COUNT)
    near = low * (high / low) ** random.random(COUNT) if low > 0 else random.uniform(-1, 1, COUNT) ** 3
    for x in (wide, np.clip(near, low, high)):
        given = x.astype(np.float32).astype(np.float64)
        expected = exact(given)
        error = np.abs(evaluate(name, given) - expected) / np.where(expected == 0, 1, np.abs(expected)) * 2.0**24
        is_checked = np.abs(given - 1) > 1e-3 if name == "log" else np.ones(COUNT, np.bool_)  # near 1 the log vanishes
        assert error[is_checked].max() <= LARGEST_ERRORS[name]


def test_half_erfc_is_accurate_to_float32() -> None:
    require_interpreter()
    x = np.linspace(0, 12, COUNT).astype(np.float32)
    expected = np.array([erfc(float(each)) / 2 for each in x])
    assert np.abs(evaluate("half_erfc", x) - expected).max() <= 1.5e-7


def test_units_of_weights_are_exact_powers() -> None:
    """exp(0) is exactly one: the greatest logit's weight is 2^bits units."""
    require_interpreter()
    assert (evaluate("exp", np.zeros(16)) == 1).all()
