"""How many threads this process may use, how busy the machine is, and the size of its last cache."""

import os
import re
from contextlib import suppress
from math import ceil
from pathlib import Path

from sporelm import settings
from sporelm.engine.request import whole_number
from sporelm.errors import RequestError, shown

MAX_THREADS_PER_CORE = 2  # more threads would only wait for each other


def choose_threads(asked: int | None = None, *, name: str = "threads") -> int:
    """Return the number of threads: `asked`, else SPORE_THREADS, else the number of usable cores.

    name   the name of `asked` in errors

    Raises RequestError outside 1 to twice the usable cores.
    """
    cores = usable_cores()
    most = MAX_THREADS_PER_CORE * cores
    given: object = asked
    if asked is None:
        name, given = settings.THREADS.name, settings.THREADS.value
        if not given:
            return cores
        with suppress(RequestError):  # this function's error knows the true limit
            given = asked = settings.THREADS.integer
        if asked is None and re.fullmatch(r"-?[0-9]{1,30}", str(given)):
            given = int(str(given))
    if asked is None or not 1 <= whole_number(name, asked) <= most:
        raise RequestError(
            f"{name} is {shown(given)}: it must be a whole number from 1 to {most}, twice the usable cores. "
            f"Leave it out to use {'every core' if cores > 1 else 'the core'}"
        )
    return int(asked)


def usable_cores(root: Path = Path("/")) -> int:
    """The cores on which this process may run, by affinity and by the quotas of its control groups; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *quotas(root)]))


def load_average() -> float:
    """Return the average number of running processes in the last minute; 0 where the system does not count them."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def last_level_cache_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of the largest cache of the first processor; 0 where that is unknown (Linux only)."""
    sizes = [0]
    for cache in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        size = _text(cache).strip()
        number, unit = size[:-1], {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 0)
        if number.isascii() and number.isdecimal():
            sizes.append(int(number) * unit)
    return max(sizes)


def quotas(root: Path = Path("/")) -> list[int]:
    """Cores that each control group of this process allows, rounded up; empty where there is no limit (Linux only)."""
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup"
        if controllers:
            if "cpu" not in controllers.split(","):
                continue
            top = top / "cpu"
        inner = top / path.lstrip("/")
        # Inside a container the path is often the host's and not there; the top folder is then the container's own.
        for place in (inner, *inner.parents) if inner.is_dir() else (top,):
            quota = _version_1(place) if controllers else _version_2(place)
            if quota is not None:
                found.append(quota)
            if place == top:
                break
    return found


def _version_2(place: Path) -> int | None:
    words = _text(place / "cpu.max").split()
    return _cores(*words) if len(words) == 2 else None


def _version_1(place: Path) -> int | None:
    return _cores(_text(place / "cpu.cfs_quota_us").strip(), _text(place / "cpu.cfs_period_us").strip())


def _cores(quota: str, period: str) -> int | None:
    """Microseconds of CPU time a period; None for no limit ("max", or -1)."""
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return max(1, ceil(int(quota) / int(period)))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
