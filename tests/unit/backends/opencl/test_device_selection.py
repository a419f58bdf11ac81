"""The choice of a device by number, kind and name; devices that are too small; a machine without a driver."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm import settings
from sporelm.errors import BackendError

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

import pyopencl as cl

from sporelm.backends.opencl import OpenClBackend, device_selection
from sporelm.backends.opencl.device_selection import choose_device, find_unsupported_reason, list_opencl_devices
from sporelm.backends.protocol import Missing
from unit.backends.opencl.stand_in_device import LARGE, stand_in

DEVICES = [
    stand_in(0, "cpu", "pthread-EPYC", "Portable Computing Language"),
    stand_in(1, "gpu", "Radeon RX 580", "AMD"),
    stand_in(2, "gpu", "Arc A380", "Intel(R) OpenCL Graphics"),
]


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        (None, 1),
        ("opencl", 1),
        ("0", 0),
        ("opencl:2", 2),
        ("gpu", 1),
        ("GPU:1", 2),
        ("cpu", 0),
        ("radeon", 1),
        ("intel", 2),
        ("portable", 0),
    ],
)
def test_devices_are_chosen_by_number_kind_and_name(wanted: str | None, number: int) -> None:
    assert choose_device(wanted, DEVICES).number == number


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("", "no such device"),
        ("3", "no such device"),
        ("gpu:2", "no such device"),
        ("accelerator", "no such device"),
        ("a", "ambiguous device, 3 match"),
    ],
)
def test_a_missing_device_is_an_error_with_the_list(wanted: str, problem: str) -> None:
    with pytest.raises(BackendError, match=f"{problem}.*got '{wanted}'.*1: gpu Radeon RX 580 .AMD..*option device"):
        choose_device(wanted, DEVICES)


def test_the_default_can_run_the_kernels() -> None:
    small = stand_in(3, "gpu", "Small", local_mem_size=0)
    assert choose_device(None, [small, *DEVICES]).number == 1
    assert choose_device(None, [small, DEVICES[0]]).kind == "cpu"
    assert choose_device(None, [small]).number == 3, "its error says what it lacks"


def test_without_a_gpu_the_cpu_is_the_default() -> None:
    assert choose_device(None, DEVICES[:1]).kind == "cpu"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": (1, 1)}, r"OpenCL version \(got 1.1; at least 1.2\)"),
        ({"local_mem_size": 0}, r"bytes of local memory \(got 0; at least 16384\)"),
        ({"max_work_group_size": 8}, r"work-items in a work-group \(got 8; at least 16\)"),
        ({"max_mem_alloc_size": 1 << 20}, r"bytes in one buffer \(got 1048576; at least 67108864\)"),
        ({"compiler_available": False}, "no compiler for OpenCL C"),
        ({"endian_little": False}, "big-endian"),
        ({"profile": "EMBEDDED_PROFILE"}, r"only the embedded profile.*\(EMBEDDED_PROFILE\)"),
    ],
)
def test_a_device_that_is_too_small_has_a_reason_and_a_remedy(
    changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = stand_in(0, "gpu", "Small", **changes)
    monkeypatch.setattr("sporelm.backends.opencl.opencl_backend.list_opencl_devices", lambda: [device])
    state = OpenClBackend().probe()
    assert isinstance(state, Missing)
    obstacle = find_unsupported_reason(device)
    assert obstacle is not None
    assert re.search(reason, obstacle)
    assert state.reason == obstacle.rstrip(".")
    assert "option device" in state.reason
    assert "\n" not in state.reason


def test_a_machine_without_a_driver_has_a_reason_and_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(device_selection.cl, "get_platforms", fail)
    monkeypatch.setattr(settings, "OPENCL_VENDORS", SimpleNamespace(value=str(tmp_path), path=tmp_path))
    state = OpenClBackend().probe()
    assert isinstance(state, Missing)
    assert "no OpenCL driver that loads (clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR)" in state.reason
    assert "apt install pocl-opencl-icd" in state.reason
    (tmp_path / "one.icd").write_text("/usr/lib/libgone.so.1\n", "utf-8")
    (tmp_path / "two.icd").write_bytes(b"")
    with pytest.raises(BackendError) as error:
        list_opencl_devices()
    assert f"({tmp_path}/one.icd names /usr/lib/libgone.so.1; {tmp_path}/two.icd names nothing; clGet" in str(
        error.value
    )


def test_a_broken_driver_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise cl.RuntimeError("clGetDeviceIDs failed: OUT_OF_RESOURCES")

    device = SimpleNamespace(**LARGE, type=cl.device_type.GPU, version="OpenCL 3.0 x", name=" Fine  GPU\0")
    platforms = [
        SimpleNamespace(name="Broken", get_devices=fail),
        SimpleNamespace(name="Whole", version="OpenCL 3.0 Whole 7", get_devices=lambda: [device]),
    ]
    monkeypatch.setattr(device_selection.cl, "get_platforms", lambda: platforms)
    (found,) = device_selection.list_opencl_devices()
    assert (found.label, found.version, found.driver) == ("0: gpu Fine GPU (Whole)", (3, 0), "24.1")
    assert choose_device("whole 7", [found]) is found
    assert (found.has_fp16, found.shares_host_memory, found.alignment) == (True, True, 128)
