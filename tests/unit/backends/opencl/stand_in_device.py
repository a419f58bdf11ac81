"""Devices of OpenCL that exist only in a test."""

from types import SimpleNamespace
from typing import Any

from sporelm.backends.opencl.device_selection import OpenClDevice

LARGE = {
    "available": True,
    "compiler_available": True,
    "max_work_group_size": 256,
    "max_work_item_sizes": (256, 256, 256),
    "local_mem_size": 1 << 16,
    "max_mem_alloc_size": 1 << 30,
    "endian_little": True,
    "profile": "FULL_PROFILE",
    "extensions": "cl_khr_fp16 cl_khr_fp64",
    "host_unified_memory": True,
    "mem_base_addr_align": 1024,
    "driver_version": "24.1\0",
}


def stand_in(number: int, kind: str, name: str, platform: str = "Some OpenCL", **changes: Any) -> OpenClDevice:
    """Return a device that is large enough, but for the `changes`."""
    version = changes.pop("version", (3, 0))
    return OpenClDevice(number, SimpleNamespace(**(LARGE | changes)), kind, name, platform, version)
