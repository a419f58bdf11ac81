"""The error of each number format, and blocks at the edges of float arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quant_inputs import NORMAL, values
from sporelm.quant import FORMATS, dequantize_tensor, format_of, quantize_tensor

BLOCKED = sorted(name for name, kind in FORMATS.items() if kind.values > 1 and kind.can_quantize)
EXACT = [name for name in BLOCKED if name not in ("MXFP4", "NVFP4")]  # scales are any number, to float16's precision

# Root mean square error / root mean square of normally distributed values, at most; and the largest error of a value in
# parts of the largest magnitude of its block.
COSTS = {
    "Q4_0": (0.09, 1 / 7),
    "Q4_1": (0.08, 1 / 14),
    "Q5_0": (0.045, 1 / 15),
    "Q5_1": (0.04, 1 / 30),
    "Q8_0": (0.006, 1 / 220),
    "Q4_K": (0.075, 1 / 5),
    "Q5_K": (0.04, 1 / 10),
    "Q6_K": (0.02, 1 / 20),
    "Q8_1": (0.006, 1 / 220),
    "Q8_K": (0.007, 1 / 220),
    "IQ4_NL": (0.08, 1 / 7),
    "IQ4_XS": (0.08, 1 / 6),
    "MXFP4": (0.12, 1 / 3.9),
    "NVFP4": (0.1, 1 / 3.9),
    "Q3_K": (0.16, 1 / 3),
    "Q2_K": (0.3, 1 / 2),
    "Q1_0": (0.6, 1),
    "Q2_0": (0.7, 0.501),
    "TQ1_0": (0.8, 0.501),
    "TQ2_0": (0.8, 0.501),
}
# What a value may be off whatever its size: float16 scales have steps of 2^-24, E4M3 scales of 2^-9.
FLOORS = dict.fromkeys(COSTS, 4e-6) | {"NVFP4": 0.01}


def round_trip(name: str, x: np.ndarray) -> np.ndarray:
    return dequantize_tensor(format_of(name), quantize_tensor(format_of(name), x), x.shape)


@pytest.mark.parametrize("name", BLOCKED)
def test_error_of_normal_values(name: str) -> None:
    x = values(NORMAL, 64)
    error = round_trip(name, x) - x
    assert np.sqrt(np.mean(error**2) / np.mean(x**2)) < COSTS[name][0]


def test_more_bits_have_less_error() -> None:
    x = values(NORMAL, 64)
    costs = {name: float(np.mean((round_trip(name, x) - x) ** 2)) for name in BLOCKED}
    assert costs["Q8_0"] < costs["Q6_K"] < costs["Q5_K"] < costs["Q5_0"] < costs["Q4_K"] < costs["Q4_0"]
    assert costs["Q5_1"] < costs["Q4_1"] < costs["Q4_0"]
    assert costs["IQ4_NL"] < costs["IQ4_XS"] < costs["Q4_0"] < costs["NVFP4"] < costs["MXFP4"]
    assert costs["MXFP4"] < costs["Q3_K"] < costs["Q2_K"] < costs["Q1_0"]


@pytest.mark.parametrize("name", BLOCKED)
@given(seed=st.integers(0, 1 << 30), power=st.integers(-8, 8), offset=st.sampled_from([0.0, 1.0, -3.0]))
def test_no_value_is_far_off(name: str, seed: int, power: int, offset: float) -> None:
    x = np.random.default_rng(seed).uniform(-1, 1, (2, 256)).astype(np.float32) + np.float32(offset)
    x *= np.float32(2.0**power)
    largest = np.abs(x).reshape(-1, format_of(name).values).max(axis=1)
    error = np.abs(round_trip(name, x) - x).reshape(len(largest), -1).max(axis=1)
    assert (error <= largest * COSTS[name][1] + FLOORS[name]).all()


@pytest.mark.parametrize("name", BLOCKED)
def test_zeros_of_any_sign_come_back_as_zeros(name: str) -> None:
    assert not round_trip(name, values("zeros of both signs", 16)).any()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("constant", [1.0, -1.0, 0.37, -1000.0, 60_000.0])
def test_constants_come_back(name: str, constant: float) -> None:
    x = np.full((1, 256), constant, np.float32)
    assert np.abs(round_trip(name, x) - x).max() <= abs(constant) * 2e-3


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("size", [1e-45, 1e-42, 1e-38, 1e-20, 1e-10])
def test_values_too_small_for_the_scale_become_zero(name: str, size: float) -> None:
    x = np.full((1, 256), size, np.float32)
    x[0, ::3] *= -1
    assert np.abs(round_trip(name, x)).max() <= 2e-7


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("case", ["huge", "squares overflow", "any finite bits"])
def test_values_too_large_for_the_scale_do_not_warn(name: str, case: str) -> None:
    x = values(case, 8)
    assert not np.allclose(round_trip(name, x), x)  # as in ggml, float16 scales cannot follow


@pytest.mark.parametrize("name", [name for name in BLOCKED if name != "NVFP4"])
def test_values_up_to_the_range_of_float16_are_kept(name: str) -> None:
    x = values(NORMAL, 8) * np.float32(16_000)
    assert np.abs(x).max() > 50_000
    back = round_trip(name, x)
    assert np.sqrt(np.mean((back - x) ** 2) / np.mean(x**2)) < COSTS[name][0]
