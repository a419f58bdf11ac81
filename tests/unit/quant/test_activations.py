"""Activations as int8 per 32 values."""

import numpy as np
import pytest

from sporelm.quant.activations import quantize_int8_32


def test_scale_integers_and_padding() -> None:
    x = np.zeros((2, 33), np.float32)
    x[0, :4] = [127, -127, 0.5, 1.5]
    x[0, 32] = 2
    integers, scales = quantize_int8_32(x)
    assert integers.dtype == np.int8
    assert scales.dtype == np.float32
    assert integers.shape == (2, 64)
    assert scales.shape == (2, 2)
    assert integers[0, :4].tolist() == [127, -127, 0, 2]  # ties to even
    assert integers[0, 32] == 127
    assert scales[0, 0] == 1
    assert scales[0, 1] == np.float32(2) / np.float32(127)
    assert not integers[0, 33:].any()
    assert not integers[1].any()
    assert not scales[1].any()


def test_it_is_exactly_float32_arithmetic() -> None:
    x = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    integers, scales = quantize_int8_32(x)
    for row in range(5):
        for group in range(3):
            part = x[row, group * 32 : group * 32 + 32]
            amax = np.abs(part).max()
            assert scales[row, group] == amax / np.float32(127)
            inverse = np.float32(127) / amax
            assert integers[row, group * 32 : group * 32 + 32].tolist() == [int(np.rint(v * inverse)) for v in part]


def test_a_row_depends_on_nothing_but_itself() -> None:
    x = np.random.default_rng(1).standard_normal((7, 64)).astype(np.float32)
    whole, alone = quantize_int8_32(x), quantize_int8_32(x[3:4])
    assert np.array_equal(whole[0][3:4], alone[0])
    assert np.array_equal(whole[1][3:4], alone[1])


@pytest.mark.parametrize("value", [1e-40, 0.0, -0.0])
def test_values_too_small_to_scale_are_zero(value: float) -> None:
    integers, _ = quantize_int8_32(np.full((1, 32), value, np.float32))
    assert not integers.any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_values_show_in_the_scale(value: float) -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 40] = value
    _, scales = quantize_int8_32(x)
    assert np.isfinite(scales[0, 0])
    assert not np.isfinite(scales[0, 1])


def test_no_rows() -> None:
    integers, scales = quantize_int8_32(np.zeros((0, 64), np.float32))
    assert integers.shape == (0, 64)
    assert scales.shape == (0, 2)
