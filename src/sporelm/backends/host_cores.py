"""The number of CPU cores that this process may use, by its affinity and its control groups."""

import os
from math import ceil
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that CPU affinity and cgroup quotas allow this process; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *cgroup_quotas(root)]))


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
