"""A check of the OpenCL drivers in a process of its own, before this one loads them.

A fault inside a driver (a segmentation fault, two drivers with clashing libraries, a failed assertion of a compiler)
ends the whole process: Python cannot catch it, and a server would take all of its models along. So a child process
first lists the devices, opens the one that is asked for, and compiles and runs a kernel there. If the child dies or
hangs, the back-end is unavailable with that reason. A success is kept in the folder of compiled code, for the files by
which the drivers are installed; where there are none, for a day.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import date

from sporelm import __version__, settings
from sporelm.backends.file_cache import ObjectCache
from sporelm.errors import BackendError

CHECK_SECONDS = 60.0
REMEDY = "Update or remove the driver, or choose another device with the option device."
NUM_FIXED_PARTS = 4  # of a key
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from sporelm.backends.opencl.driver_probe import probe_driver; probe_driver(json.loads(sys.argv[2]))"
)
_checked: set[str] = set()  # keys of drivers that this process has checked


def check_driver(device: str | None, successes: ObjectCache | None = None) -> None:
    """Raise BackendError if the drivers, or that of a device, end a process that uses them.

    device     see `choose_device`
    successes  where they are kept
    """
    key = driver_key(device)
    if key in _checked:
        return
    successes = successes if successes is not None else ObjectCache()
    if successes.get(key) is None:
        _run_child(device)
        successes.put(key, b"alive")
    _checked.add(key)


def driver_key(device: str | None) -> str:
    """Return the name under which a success is kept."""
    parts = [__version__, sys.version, str(device), settings.OPENCL_VENDORS.value]
    try:
        for path in sorted(settings.OPENCL_VENDORS.path.glob("*.icd")):
            parts += [path.name, str(path.stat().st_mtime_ns), path.read_bytes().hex()]
    except OSError as error:
        parts.append(str(error))
    if len(parts) == NUM_FIXED_PARTS:
        parts.append(date.today().isoformat())
    return "cl-driver-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _run_child(device: str | None) -> None:
    command = [sys.executable, "-S", "-P", "-c", _START, json.dumps(sys.path), json.dumps(device)]
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=CHECK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BackendError(
            f"the OpenCL driver hangs (a process that used it did not end in {CHECK_SECONDS:g} s). {REMEDY}"
        ) from None
    except OSError:
        return  # no process can be started: then the driver is used without a check
    if child.returncode:
        raise BackendError(f"the OpenCL driver ended a process that used it ({_name_code(child.returncode)}). {REMEDY}")


def _name_code(code: int) -> str:
    if code < 0 and os.name == "posix":
        with suppress(ValueError):
            return f"signal {-code}, {signal.Signals(-code).name}"
    return f"exit code {code:#x}" if code > 255 else f"exit code {code}"
