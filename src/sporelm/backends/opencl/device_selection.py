"""The OpenCL devices of this machine, the choice of one, and the reason why one cannot be used."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyopencl as cl

from sporelm import settings
from sporelm.backends.opencl.pocl_folder import use_own_folder
from sporelm.errors import BackendError

KINDS = {"gpu": cl.device_type.GPU, "accelerator": cl.device_type.ACCELERATOR, "cpu": cl.device_type.CPU}
DRIVER_REMEDY = (
    "Install the vendor's OpenCL driver, or PoCL for the CPU (Debian: apt install pocl-opencl-icd ocl-icd-libopencl1)"
)
MIN_VERSION = (1, 2)  # of OpenCL: images are not used, sub-buffers and fills are
MIN_GROUP_SIZE = 16  # work-items in a work-group
MIN_LOCAL_BYTES = 16 << 10  # of local memory: OpenCL's minimum in a full profile is 32 KiB
MIN_ALLOC_BYTES = 64 << 20  # of one buffer
MAX_DRIVER_FILES = 4  # that an error lists
FULL_PROFILE = "FULL_PROFILE"
FP16_EXTENSION = "cl_khr_fp16"


@dataclass(frozen=True)
class OpenClDevice:
    """A device, its number among all of this machine, and what kernels need to know of it."""

    number: int
    device: Any
    kind: str  # gpu, accelerator, cpu, or custom
    name: str
    platform: str
    version: tuple[int, int]
    aliases: str = ""  # more text in which a part of a name is looked for

    @property
    def label(self) -> str:
        """Return the device as lists show it: "0: gpu GeForce (NVIDIA CUDA)"."""
        return f"{self.number}: {self.kind} {self.name} ({self.platform})"

    @property
    def driver(self) -> str:
        return one_line(self.device.driver_version)

    @property
    def has_fp16(self) -> bool:
        """Return whether it computes in half precision. It stores halves in any case."""
        return FP16_EXTENSION in self.device.extensions.split()

    @property
    def shares_host_memory(self) -> bool:
        """Return whether its memory is the host's, as that of integrated GPUs and of CPUs is."""
        return bool(self.device.host_unified_memory)

    @property
    def max_group_size(self) -> int:
        """Return the work-items that a work-group may have."""
        return int(self.device.max_work_group_size)

    @property
    def max_group_sizes(self) -> Sequence[int]:
        """Return the work-items that a work-group may have in each dimension: three at least."""
        return [int(size) for size in self.device.max_work_item_sizes]

    @property
    def alignment(self) -> int:
        """Return the bytes to which parts of a buffer must be aligned."""
        return max(64, int(self.device.mem_base_addr_align) // 8)


def list_opencl_devices() -> list[OpenClDevice]:
    """Return all devices of all platforms, numbered in the order of the drivers. Raise BackendError without a driver.

    A platform whose devices cannot be listed is passed over, as is a device that cannot be described: a broken driver
    must not hide the others.
    """
    use_own_folder()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        reasons = [*list_driver_files(), explain_error(error)]
        raise BackendError(f"no OpenCL driver that loads ({'; '.join(reasons)}). {DRIVER_REMEDY}.") from None
    devices: list[OpenClDevice] = []
    for platform in platforms:
        of_platform: list[Any] = []
        with suppress(cl.Error):
            of_platform = platform.get_devices()
        for device in of_platform:
            with suppress(cl.Error):
                devices.append(_describe(len(devices), device, platform))
    if not devices:
        names = ", ".join(one_line(platform.name) for platform in platforms)
        raise BackendError(f"no OpenCL device (drivers that list none: {names}). {DRIVER_REMEDY}.")
    return devices


def list_driver_files() -> list[str]:
    """Return the first files that name drivers to the ICD loader, with what each names."""
    files = []
    for path in sorted(settings.OPENCL_VENDORS.path.glob("*.icd"))[:MAX_DRIVER_FILES]:
        with suppress(OSError):
            library = one_line(path.read_bytes()[:200].decode("utf-8", "replace").partition("\n")[0])
            files.append(f"{path} names {library or 'nothing'}")
    return files


def _describe(number: int, device: Any, platform: Any) -> OpenClDevice:
    kinds = [name for name, flag in KINDS.items() if device.type & flag]
    version = re.search(r"(\d+)\.(\d+)", device.version)
    return OpenClDevice(
        number,
        device,
        kinds[0] if kinds else "custom",
        one_line(device.name),
        one_line(platform.name),
        (int(version[1]), int(version[2])) if version else (1, 0),
        one_line(platform.version),  # "OpenCL 3.0 PoCL 3.1 ..."
    )


def choose_device(device_name: str | None, devices: Sequence[OpenClDevice]) -> OpenClDevice:
    """Return the device of a name. Raise BackendError with the list of devices if there is none, or several fit.

    device_name   None: the first GPU that can run the kernels, else the first such accelerator, else the first such
                  CPU; a number; a kind ("gpu"), perhaps with a number among those of the kind ("gpu:1"); or a part of
                  one device's name or platform. Case-insensitive
    """
    name = "opencl" if device_name is None else device_name.strip().lower().removeprefix("opencl:")
    if name == "opencl":
        return min(devices, key=lambda each: (not can_run(each), [*KINDS, "custom"].index(each.kind)))
    if name.isdecimal():
        fitting = [each for each in devices if each.number == int(name)]
    elif (kind := name.partition(":"))[0] in KINDS and (kind[2].isdecimal() or not kind[1]):
        of_kind = [each for each in devices if each.kind == kind[0]]
        place = int(kind[2] or 0)
        fitting = of_kind[place : place + 1]
    else:
        fitting = [each for each in devices if name and name in f"{each.name} {each.platform} {each.aliases}".lower()]
    if len(fitting) != 1:
        problem = "no such device" if not fitting else f"ambiguous device, {len(fitting)} match"
        allowed = "; ".join(each.label for each in devices)
        raise BackendError(
            f"{problem} (got {str(device_name)[:80]!r}; allowed {allowed}). Set the option device to a number "
            "or a name."
        )
    return fitting[0]


def find_unsupported_reason(device: OpenClDevice) -> str | None:
    """Return why a device cannot run the kernels, with a remedy; None if it can."""
    cl_device: Any = device.device
    remedy = "Choose another device with the option device"
    if not cl_device.available or not cl_device.compiler_available:
        return f"device {device.label} is not available, or has no compiler for OpenCL C. {remedy}"
    if cl_device.profile != FULL_PROFILE:
        return (
            f"device {device.label} has only the embedded profile, with other rounding ({cl_device.profile}). {remedy}"
        )
    checks: tuple[tuple[str, Any, Any], ...] = (
        ("OpenCL version", device.version, MIN_VERSION),
        ("work-items in a work-group", cl_device.max_work_group_size, MIN_GROUP_SIZE),
        ("bytes of local memory", cl_device.local_mem_size, MIN_LOCAL_BYTES),
        ("bytes in one buffer", cl_device.max_mem_alloc_size, MIN_ALLOC_BYTES),
    )
    for quantity, value, minimum in checks:
        if value < minimum:
            shown = [".".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in (value, minimum)]
            return (
                f"device {device.label}: not capable enough, {quantity} (got {shown[0]}; at least {shown[1]}). {remedy}"
            )
    if not cl_device.endian_little:
        return f"device {device.label} is big-endian, and model files are little-endian. {remedy}"
    return None


def can_run(device: OpenClDevice) -> bool:
    """Return whether a device can run the kernels. One that was lost cannot."""
    try:
        return find_unsupported_reason(device) is None
    except cl.Error:
        return False


def explain_error(error: BaseException) -> str:
    """Return the first line of an error of OpenCL: the call and the name of its code."""
    return one_line(str(error).partition("\n")[0])


def one_line(text: str) -> str:
    """Return a text of a driver on one line, at most 200 characters."""
    return " ".join(str(text).replace("\0", "").split())[:200]
