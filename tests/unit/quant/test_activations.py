"""Activations as int8 with one scale per 32 or 256 values."""

import numpy as np
import pytest

from sporelm.quant.activations import quantize_int8


def test_scale_integers_and_padding() -> None:
    x = np.zeros((2, 33), np.float32)
    x[0, :4] = [127, -127, 0.5, 1.5]
    x[0, 32] = 2
    integers, scales = quantize_int8(x, 32)
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


@pytest.mark.parametrize("group", [32, 256])
def test_it_is_exactly_float32_arithmetic(group: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 3 * group)).astype(np.float32)
    integers, scales = quantize_int8(x, group)
    assert scales.shape == (3, 3)
    for row in range(3):
        for start in range(0, 3 * group, group):
            part = x[row, start : start + group]
            amax = np.abs(part).max()
            assert scales[row, start // group] == amax / np.float32(127)
            inverse = np.float32(127) / amax
            assert integers[row, start : start + group].tolist() == [int(np.rint(v * inverse)) for v in part]


@pytest.mark.parametrize(("group", "padded"), [(32, 320), (256, 512)])
def test_a_width_is_filled_up_with_zeros(group: int, padded: int) -> None:
    x = np.random.default_rng(2).standard_normal((2, 300)).astype(np.float32)
    integers, scales = quantize_int8(x, group)
    assert integers.shape == (2, padded)
    assert scales.shape == (2, padded // group)
    assert integers[:, :300].any()
    assert not integers[:, 300:].any()


def test_a_row_depends_on_nothing_but_itself() -> None:
    x = np.random.default_rng(1).standard_normal((7, 64)).astype(np.float32)
    whole, alone = quantize_int8(x, 32), quantize_int8(x[3:4], 32)
    assert np.array_equal(whole[0][3:4], alone[0])
    assert np.array_equal(whole[1][3:4], alone[1])


@pytest.mark.parametrize("value", [1e-40, 0.0, -0.0])
def test_values_too_small_to_scale_are_zero(value: float) -> None:
    integers, _ = quantize_int8(np.full((1, 32), value, np.float32), 32)
    assert not integers.any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_values_show_in_the_scale(value: float) -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 40] = value
    _, scales = quantize_int8(x, 32)
    assert np.isfinite(scales[0, 0])
    assert not np.isfinite(scales[0, 1])


def test_no_rows() -> None:
    integers, scales = quantize_int8(np.zeros((0, 64), np.float32), 32)
    assert integers.shape == (0, 64)
    assert scales.shape == (0, 2)
