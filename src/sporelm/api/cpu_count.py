"""The number of CPU cores this process may use, the load average and the size of the last-level cache."""

import os
import re
from contextlib import suppress
from math import ceil
from pathlib import Path

from sporelm import settings
from sporelm.engine.request import parse_int
from sporelm.errors import RequestError, safe_repr

MAX_THREADS_PER_CORE = 2  # more threads would only wait for each other


def choose_threads(requested: int | None = None, *, name: str = "threads") -> int:
    """Return the number of threads: `requested`, else SPORE_THREADS, else the number of usable cores.

    name   the name of `requested` in errors

    Raises RequestError outside 1 to twice the usable cores.
    """
    cores = usable_cores()
    max_threads = MAX_THREADS_PER_CORE * cores
    value: object = requested
    if requested is None:
        name = settings.THREADS.name
        value = settings.THREADS.value
        if not value:
            return cores
        with suppress(RequestError):  # the error below knows the true limit
            value = requested = settings.THREADS.integer
        if requested is None and re.fullmatch(r"-?[0-9]{1,30}", str(value)):
            value = int(str(value))
    if requested is None or not 1 <= parse_int(name, requested) <= max_threads:
        raise RequestError(
            f"{name} is {safe_repr(value)}: it must be a whole number from 1 to {max_threads}, twice the usable cores. "
            f"Leave it out to use {'every core' if cores > 1 else 'the core'}"
        )
    return int(requested)


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that CPU affinity and cgroup quotas allow this process; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *cgroup_quotas(root)]))


def load_average() -> float:
    """Return the average number of running processes in the last minute; 0 where the system does not count them."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def last_level_cache_bytes(root: Path = Path("/")) -> int:
    """Return the size of the first processor's largest cache in bytes; 0 if unknown (Linux only)."""
    sizes = [0]
    for cache in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        size = _read_text(cache).strip()
        number = size[:-1]
        unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 0)
        if number.isascii() and number.isdecimal():
            sizes.append(int(number) * unit)
    return max(sizes)


def cgroup_quotas(root: Path = Path("/")) -> list[int]:
    """Return the number of cores that each cgroup of this process allows, rounded up; empty without a limit (Linux)."""
    quotas = []
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup"
        if controllers:
            if "cpu" not in controllers.split(","):
                continue
            top = top / "cpu"
        inner = top / path.lstrip("/")
        # Inside a container the path is often the host's and does not exist; the top folder is then the container's.
        for folder in (inner, *inner.parents) if inner.is_dir() else (top,):
            quota = _read_v1_quota(folder) if controllers else _read_v2_quota(folder)
            if quota is not None:
                quotas.append(quota)
            if folder == top:
                break
    return quotas


def _read_v2_quota(folder: Path) -> int | None:
    words = _read_text(folder / "cpu.max").split()
    return _parse_quota(*words) if len(words) == 2 else None


def _read_v1_quota(folder: Path) -> int | None:
    return _parse_quota(
        _read_text(folder / "cpu.cfs_quota_us").strip(), _read_text(folder / "cpu.cfs_period_us").strip()
    )


def _parse_quota(quota: str, period: str) -> int | None:
    """Return the cores for a quota of microseconds per period; None without a limit ("max", or -1)."""
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return max(1, ceil(int(quota) / int(period)))


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
