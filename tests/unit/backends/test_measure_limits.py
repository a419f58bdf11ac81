"""Peak rates of a device with an array library: arrays grow until a launch takes no share of the time."""

from typing import Any

import numpy as np
import pytest

from sporelm.backends import function_backend
from sporelm.backends.function_backend import FunctionBackend
from sporelm.ops import Op
from sporelm.ops.number_types import NumberTypes
from sporelm.tensor.dtype import BF16, F32, DType
from sporelm.tensor.tensor import Tensor

LAUNCH = 1e-5  # seconds


class Clock:
    """Time that passes only while the device works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ShapeOnly:
    """An array without values; work on it takes the time of a launch and of the device's rates."""

    def __init__(self, device: "RatedDevice", shape: tuple[int, ...], dtype: DType) -> None:
        self.device, self.shape, self.dtype = device, shape, dtype
        device.shapes.append((shape, dtype.name))

    def __add__(self, other: float) -> "ShapeOnly":
        return self

    def sum(self) -> None:
        self.device.clock.now += LAUNCH + np.prod(self.shape) * self.dtype.nbytes / self.device.bandwidth

    def __matmul__(self, other: "ShapeOnly") -> None:
        self.device.clock.now += LAUNCH + 2 * self.shape[0] ** 3 / self.device.flops


class RatedDevice(FunctionBackend):
    """A device with known rates."""

    name = "rated"
    functions = {}

    def __init__(self, clock: Clock, bandwidth: float, flops: float, free: int | None) -> None:
        super().__init__()
        self.clock, self.bandwidth, self.flops, self.free = clock, bandwidth, flops, free
        self.shapes: list[tuple[tuple[int, ...], str]] = []

    def number_types(self, op: Op) -> NumberTypes:
        return NumberTypes(activation=BF16)

    def free_bytes(self) -> int | None:
        return self.free

    def copy_in(self, array: np.ndarray) -> Any:
        return array

    def copy_out(self, stored: Any) -> np.ndarray:
        return np.asarray(stored)

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Any:
        return ShapeOnly(self, shape, dtype)

    def is_plain(self, tensor: Tensor) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(function_backend, "perf_counter", found)
    return found


def test_a_fast_device_gets_large_arrays(clock: Clock) -> None:
    device = RatedDevice(clock, 3.3e12, 8e14, 80 << 30)
    limits = device.measure_limits()
    assert 0.97 * 3.3e12 < limits["stream_bytes_s"] < 3.3e12
    assert limits["stream_median_bytes_s"] == pytest.approx(limits["stream_bytes_s"])
    assert 0.95 * 8e14 < limits["f32_ops_s"] < 8e14
    assert {name for shape, name in device.shapes if len(shape) == 2} == {"bf16"}, "products of activations"


def test_a_slow_device_gets_small_arrays(clock: Clock) -> None:
    device = RatedDevice(clock, 1e10, 1e11, None)
    device.measure_limits()
    assert device.shapes == [((1 << 24,), "f32"), ((768, 768), "bf16")]


def test_arrays_take_at_most_an_eighth_of_the_free_memory(clock: Clock) -> None:
    device = RatedDevice(clock, 3.3e12, 8e14, 2 << 30)
    device.measure_limits()
    assert max(np.prod(shape) * (4 if name == F32.name.lower() else 2) for shape, name in device.shapes) <= 2 << 27
