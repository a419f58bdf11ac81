"""How much memory there is, and giving back the pages of a mapped file that are no longer needed."""

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np

from sporelm.backends.backend_parts import parts_of
from sporelm.backends.protocol import Backend

CGROUP = Path("/sys/fs/cgroup")


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can still be taken without swapping, the container's limit included; None where it is unknown.

    Linux: MemAvailable of /proc/meminfo and the control groups' limits (v2 and v1). Windows: GlobalMemoryStatusEx.
    Elsewhere: all physical memory. `root` is where /proc and /sys are looked for.
    """
    known = [limit for limit in (_meminfo(root), *_cgroup_limits(root)) if limit is not None]
    if known:
        return max(0, min(known))
    return _windows() if sys.platform == "win32" else _physical()


def physical_bytes(root: Path = Path("/")) -> int | None:
    """Return all memory of this machine; None where it is unknown."""
    total = _meminfo(root, "MemTotal")
    if total is not None:
        return total
    return _windows("total") if sys.platform == "win32" else _physical()


def available_on(backend: Backend) -> int | None:
    """Memory that can still be taken where a back-end keeps its tensors: of its device, or the host's, or of both."""
    free = [part.free_bytes() for part in parts_of(backend)]
    known = [nbytes for nbytes in free if nbytes is not None]
    if len(known) == len(free):
        return sum(known)
    host = available_bytes()
    return None if host is None else sum(known) + host


def drop_pages(array: np.ndarray) -> None:
    """Tell the system that a view of a mapped file will not be read again soon; its pages leave the process.

    They come back from the file if they are read after all. Does nothing for arrays in ordinary memory.
    """
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if not isinstance(owner, mmap.mmap) or not hasattr(owner, "madvise") or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = array.__array_interface__["data"][0] - np.frombuffer(owner, np.uint8).__array_interface__["data"][0]
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages only: others may still read the ends
    stop = (first + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > start:
        owner.madvise(mmap.MADV_DONTNEED, start, stop - start)


def trim_heap() -> None:
    """Return freed heap memory to the system, where the C library offers that (glibc): loading frees a lot of it."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _meminfo(root: Path, field: str = "MemAvailable") -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        if key == field:
            return int(value.split()[0]) * 1024
    return None


def _cgroup_limits(root: Path) -> list[int | None]:
    """Return the bytes that each control group of this process still allows."""
    folder = root / CGROUP.relative_to("/")
    limits = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, top = ("memory.max", "memory.current", "inactive_file"), folder
        elif "memory" in controllers.split(","):
            names, top = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), folder / "memory"
        else:
            continue
        inner = top / path.lstrip("/")
        # In a container the path is often the host's and not there; the top folder is then the container's own.
        for place in (inner, *inner.parents) if inner.is_dir() else (top,):
            limits.append(_remaining_bytes(place, *names))
            if place == top:
                break
    return limits


def _remaining_bytes(place: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    """Limit less use in one control group; file pages that can be dropped do not count as used."""
    limit, used = _text(place / limit_name).strip(), _text(place / used_name).strip()
    if not limit.isdigit() or not used.isdigit():
        return None
    statistics = dict(line.split(" ", 1) for line in _text(place / "memory.stat").splitlines() if " " in line)
    return int(limit) - int(used) + int(statistics.get(cache_name, 0))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _physical() -> int | None:
    import os

    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _windows(field: str = "available") -> int | None:
    import ctypes

    class MemoryStatus(ctypes.Structure):
        """MEMORYSTATUSEX of the Windows API."""

        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *[
                (name, ctypes.c_ulonglong)
                for name in ("total", "available", "pages", "free", "virtual", "left", "extended")
            ],
        ]

    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - absent elsewhere
    return int(getattr(status, field)) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else None
