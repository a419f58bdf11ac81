"""The OpenCL devices that `--backend auto` may choose: no CPU, nothing that torch has too, nothing too small."""

from typing import Any

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

import pyopencl as cl

from sporelm.backends import backend_registry, opencl_detection
from sporelm.backends.opencl import device_selection
from sporelm.backends.opencl_detection import list_opencl_candidates
from sporelm.errors import BackendError
from unit.backends.opencl.stand_in_device import stand_in

DEVICES = [
    stand_in(0, "cpu", "pthread-EPYC", "Portable Computing Language"),
    stand_in(1, "gpu", "Radeon RX 580", "AMD Accelerated Parallel Processing"),
    stand_in(2, "gpu", "Arc A380", "Intel(R) OpenCL Graphics"),
    stand_in(3, "accelerator", "Small", local_mem_size=0),
    stand_in(4, "gpu", "Adreno 740", "QUALCOMM Snapdragon"),
]


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_selection, "list_opencl_devices", lambda: DEVICES)


@pytest.mark.parametrize(
    ("of_torch", "expected"),
    [
        ([], ["opencl:1", "opencl:2", "opencl:4"]),
        (["cuda:0", "cuda:1"], ["opencl:1", "opencl:2", "opencl:4"]),
        (["xpu"], ["opencl:1", "opencl:4"]),
        (["npu:0"], ["opencl:1", "opencl:2", "opencl:4"]),
    ],
)
def test_gpus_that_torch_has_not_are_candidates(of_torch: list[str], expected: list[str]) -> None:
    assert list_opencl_candidates(of_torch) == expected


def test_a_torch_for_amd_has_the_gpus_of_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls them cuda too."""
    monkeypatch.setattr(opencl_detection, "is_hip_build", lambda: True)
    assert list_opencl_candidates(["cuda:0"]) == ["opencl:2", "opencl:4"]


def test_a_lost_device_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: Any) -> Any:
        raise cl.LogicError("clGetDeviceInfo failed: DEVICE_NOT_AVAILABLE")

    monkeypatch.setattr(device_selection, "find_unsupported_reason", fail)
    assert list_opencl_candidates() == []


def test_the_registry_lists_them_after_the_devices_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_registry, "list_torch_devices", lambda: ["xpu"])
    monkeypatch.setattr(backend_registry, "entry_points", lambda group: [])
    assert backend_registry.find_devices() == [("torch", "xpu"), ("opencl", "opencl:1"), ("opencl", "opencl:4")]


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise BackendError("no OpenCL driver")

    monkeypatch.setattr(device_selection, "list_opencl_devices", fail)
    assert list_opencl_candidates() == []


def test_without_pyopencl_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_detection, "find_spec", lambda name: None)
    assert list_opencl_candidates() == []
