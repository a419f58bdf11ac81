"""Finds the OpenCL devices that `--backend auto` may choose. Imports pyopencl only if it is installed."""

from collections.abc import Collection
from importlib.util import find_spec

from sporelm.errors import BackendError

CHOSEN_KINDS = ("gpu", "accelerator")  # a CPU has our own back-end
# Platforms and vendors of devices that torch has under its own names.
VENDORS_OF_TORCH = {"cuda": ("nvidia", "amd"), "xpu": ("intel",), "mps": ("apple",), "musa": ("moore",)}


def list_opencl_candidates(torch_devices: Collection[str] = ()) -> list[str]:
    """Return the names of OpenCL devices for a choice by measurement: "opencl:1", ...

    CPUs are left out, and devices that cannot run the kernels. So are devices of vendors whose devices torch lists
    (`torch_devices`): its back-ends have libraries of the vendor's.
    """
    if find_spec("pyopencl") is None:
        return []
    try:
        from sporelm.backends.opencl.device_selection import find_obstacle, list_opencl_devices
        from sporelm.backends.opencl.driver_check import check_driver

        check_driver(None)
        devices = list_opencl_devices()
    except BackendError:
        return []
    kinds = {name.partition(":")[0] for name in torch_devices}
    taken = [vendor for kind in kinds for vendor in VENDORS_OF_TORCH.get(kind, ())]
    return [
        f"opencl:{device.number}"
        for device in devices
        if device.kind in CHOSEN_KINDS
        and find_obstacle(device) is None
        and not any(vendor in f"{device.name} {device.platform}".lower() for vendor in taken)
    ]
