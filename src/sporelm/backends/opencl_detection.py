"""Finds the OpenCL devices that `--backend auto` may choose. Imports pyopencl only if it is installed."""

from collections.abc import Collection
from importlib.util import find_spec

from sporelm.backends.torch_detection import is_hip_build
from sporelm.errors import BackendError

CHOSEN_KINDS = ("gpu", "accelerator")  # a CPU has our own back-end
# Platforms and vendors of devices that torch has under its own names; "cuda" are NVIDIA's, or AMD's if it was built so.
VENDORS_OF_TORCH = {"cuda": "nvidia", "xpu": "intel", "mps": "apple", "musa": "moore"}


def list_opencl_candidates(torch_devices: Collection[str] = ()) -> list[str]:
    """Return the names of OpenCL devices for a choice by measurement: "opencl:1", ...

    CPUs are left out, and devices that cannot run the kernels. Devices that torch also lists (`torch_devices`) are left
    out: its back-ends use the vendor's libraries.
    """
    if find_spec("pyopencl") is None or find_driver_failure() is not None:
        return []
    try:
        from sporelm.backends.opencl.device_selection import can_run, list_opencl_devices

        devices = list_opencl_devices()
    except BackendError:
        return []
    kinds = {name.partition(":")[0] for name in torch_devices}
    vendors = VENDORS_OF_TORCH | ({"cuda": "amd"} if is_hip_build() else {})
    taken = [vendors[kind] for kind in kinds & vendors.keys()]
    return [
        f"opencl:{device.number}"
        for device in devices
        if device.kind in CHOSEN_KINDS
        and not any(vendor in f"{device.name} {device.platform}".lower() for vendor in taken)
        and can_run(device)
    ]


def find_driver_failure() -> str | None:
    """Return why the check of the OpenCL drivers failed (crash or hang), which hides all devices; None if it passed."""
    if find_spec("pyopencl") is None:
        return None
    try:
        from sporelm.backends.opencl.driver_check import check_driver
    except BackendError:  # pyopencl does not load
        return None
    try:
        check_driver(None)
    except BackendError as error:
        return str(error)
    return None
