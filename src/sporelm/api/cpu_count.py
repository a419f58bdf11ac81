"""How many threads to use, the load average and the size of the last-level cache."""

import os
import re
from contextlib import suppress
from pathlib import Path

from sporelm import settings
from sporelm.backends.host_cores import usable_cores
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
        try:
            size = cache.read_text().strip()
        except OSError:
            continue
        number = size[:-1]
        unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 0)
        if number.isascii() and number.isdecimal():
            sizes.append(int(number) * unit)
    return max(sizes)
