"""Finds the devices of an installed torch. Imports torch, which takes a second, only if it can have some."""

import ctypes
import re
import sys
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from sporelm.errors import BackendError

PLATFORMS = re.compile(r"^(cuda|hip|xpu)\b[^=]*= *['\"]", re.MULTILINE)  # set in torch/version.py, not None


_failures: list[str] = []  # why torch did not load


def load_torch() -> None:
    """Import torch. Raise BackendError if it does not load; if it is not installed, each back-end names its remedy.

    Torch is not imported again after a failure: that fails for another reason.
    """
    if _failures:
        raise BackendError(_failures[0])
    try:
        import_module("sporelm.backends.torch")
    except BackendError as error:
        if error.__cause__ is None:  # not installed
            return
        _failures.append(str(error))
        raise


def list_torch_devices() -> list[str]:
    """Return the names of torch's devices other than the CPU: "cuda:0", "mps", ..."""
    if not can_have_devices():
        return []
    try:
        load_torch()
    except BackendError:  # `describe_backend` says why
        return []
    from sporelm.backends.torch.device_queries import list_devices

    return list_devices()


def can_have_devices() -> bool:
    """Return whether torch is installed, has support for a device by its build or a plug-in, and finds a driver."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    if sys.platform == "darwin" or entry_points(group="torch.backends"):
        return True
    platforms = _read_platforms(spec.origin)
    if platforms is None:
        return True  # only torch itself can tell
    return bool(platforms - {"cuda"}) or ("cuda" in platforms and has_cuda_driver())


def is_hip_build() -> bool:
    """Return whether an installed torch was built for AMD's GPUs. It calls them "cuda" as well."""
    spec = find_spec("torch")
    return spec is not None and spec.origin is not None and "hip" in (_read_platforms(spec.origin) or ())


def _read_platforms(torch_origin: str) -> set[str] | None:
    """Return the platforms that torch was built for; None if they cannot be read."""
    try:
        return set(PLATFORMS.findall((Path(torch_origin).parent / "version.py").read_text("utf-8")))
    except OSError:
        return None


def has_cuda_driver() -> bool:
    """Return whether the library of NVIDIA's driver loads."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True
