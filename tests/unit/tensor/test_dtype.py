"""BF16 and FP8 against torch where it is installed, and against tables made from their definitions."""

from typing import Any

import numpy as np
import pytest

from sporelm.errors import OpError
from sporelm.tensor.dtype import BF16, F16, F32, FP8, U8, DType, dtype_of

LARGE = (0.0, np.inf, np.nan, 448, 449, 464, 465, 480, 1e38, 3.4e38)
SMALL = (2.0**-6, 2.0**-9, 2.0**-10, 2.0**-10 * 1.0001, 3 * 2.0**-10, 2.0**-126, 1e-45, 1e-40)
SPECIAL = np.array([sign * value for sign in (1, -1) for value in (*LARGE, *SMALL)], np.float32)


def all_kinds_of_floats() -> np.ndarray:
    """Return random bit patterns, normal values, values near the range of fp8, and special ones."""
    random = np.random.default_rng(7)
    patterns = random.integers(0, 1 << 32, 200_000, np.uint64).astype(np.uint32).view(np.float32)
    near = np.ldexp(random.uniform(-2, 2, 100_000), random.integers(-12, 10, 100_000)).astype(np.float32)
    return np.concatenate([patterns, random.standard_normal(50_000, np.float32), near, SPECIAL])


def finite_codes(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of the finite numbers from 0 up, and their values, by the definition of the type."""
    bits, count, bias = (7, 0x7F80, 127) if dtype is BF16 else (3, 0x7F, 7)
    codes = np.arange(count)
    exponent, fraction = codes >> bits, codes & ((1 << bits) - 1)
    whole = np.where(exponent > 0, (1 << bits) + fraction, fraction)
    return codes, np.ldexp(whole, np.maximum(exponent, 1) - bias - bits)


def round_by_table(values: np.ndarray, dtype: DType, saturates: bool) -> np.ndarray:
    """Return the codes of the nearest numbers, of two equally near ones the even code."""
    codes, numbers = finite_codes(dtype)
    magnitude = np.abs(values.astype(np.float64))
    step = numbers[-1] - numbers[-2]
    above = np.clip(np.searchsorted(numbers, magnitude), 1, len(codes) - 1)
    low, high = magnitude - numbers[above - 1], numbers[above] - magnitude
    code = np.where((high < low) | ((high == low) & (above % 2 == 0)), above, above - 1)
    code = np.where(magnitude >= numbers[-1] + step / 2, codes[-1] if saturates else codes[-1] + 1, code)
    return np.where(np.signbit(values), code + (1 << (8 * dtype.nbytes - 1)), code)


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_rounds_to_the_nearest_number_of_the_table(dtype: DType) -> None:
    values = all_kinds_of_floats()
    found, is_nan = dtype.from_f32(values), np.isnan(values)
    assert np.array_equal(found[~is_nan], round_by_table(values[~is_nan], dtype, saturates=dtype is FP8))
    assert np.isnan(dtype.to_f32(found[is_nan])).all()


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_every_code_is_its_number_and_comes_back(dtype: DType) -> None:
    every = np.arange(1 << (8 * dtype.nbytes)).astype(dtype.numpy)
    values = dtype.to_f32(every)
    codes, numbers = finite_codes(dtype)
    assert np.array_equal(values[codes], numbers.astype(np.float32))
    assert np.array_equal(values[codes + len(every) // 2], -numbers.astype(np.float32))
    known = ~np.isnan(values)
    assert np.array_equal(dtype.from_f32(values)[known], every[known])
    assert np.count_nonzero(~known) == (2 if dtype is FP8 else 254)


@pytest.mark.parametrize(("dtype", "name"), [(BF16, "bfloat16"), (FP8, "float8_e4m3fn")])
def test_rounds_as_torch_does(dtype: DType, name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    kind = getattr(torch, name)
    carrier = torch.uint8 if dtype is FP8 else torch.uint16
    values = all_kinds_of_floats()
    limit = np.float32(448) if dtype is FP8 else np.float32(np.inf)
    given = np.clip(values, -limit, limit)  # torch gives NaN above 464, ours saturates
    theirs = torch.from_numpy(given).to(kind).view(carrier).numpy()
    known = ~np.isnan(values)
    assert np.array_equal(dtype.from_f32(values)[known], theirs[known])
    every = np.arange(1 << (8 * dtype.nbytes)).astype(dtype.numpy)
    wide = torch.from_numpy(every.copy()).view(kind).to(torch.float32).numpy()
    assert np.array_equal(dtype.to_f32(every), wide, equal_nan=True)


def test_plain_types_convert_as_numpy_does() -> None:
    values = np.array([1.5, 70000, -1e-8, np.inf], np.float32)
    assert np.array_equal(F32.to_f32(F32.from_f32(values)), values)
    with np.errstate(over="ignore"):
        assert np.array_equal(F16.from_f32(values), values.astype(np.float16))


def test_arrays_of_carriers_are_not_told_apart_by_numpy() -> None:
    assert dtype_of(np.zeros(3, np.uint8)) is U8
    with pytest.raises(OpError, match="uint16"):
        dtype_of(np.zeros(3, np.uint16))


def test_shapes_are_kept() -> None:
    for dtype in (BF16, FP8):
        values = (np.arange(24, dtype=np.float32) % 16).reshape(2, 3, 4).swapaxes(0, 2)
        assert np.array_equal(dtype.to_f32(dtype.from_f32(values)), values)
