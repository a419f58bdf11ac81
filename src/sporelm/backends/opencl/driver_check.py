"""A check of the OpenCL drivers in a process of its own, before this one loads them.

A fault inside a driver (a segmentation fault, two drivers with clashing libraries, a failed assertion of a compiler)
ends the whole process: Python cannot catch it, and a server would go down with all of its models. So a child process
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
import tempfile
from contextlib import suppress
from datetime import date
from pathlib import Path

from sporelm import __version__, settings
from sporelm.backends.file_cache import ObjectCache
from sporelm.errors import BackendError

CHECK_TIMEOUT_SECONDS = 60.0
IMPORT_FAILED = 97  # the exit code of a child that could not import what uses the driver
MAX_SHOWN = 200  # characters of what the driver wrote last
INSTALL_REMEDY = "Install sporelm and pyopencl again."
REMEDY = "Update or remove the driver, or choose another device with the option device."
NUM_FIXED_PARTS = 4  # of a key
_START = f"""
import json, os, sys, traceback
sys.path[:] = json.loads(sys.argv[1])
try:
    from sporelm.backends.opencl.driver_probe import probe_driver
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit({IMPORT_FAILED})
probe_driver(json.loads(sys.argv[2]))
"""
_results: dict[str, str | None] = {}  # failures of drivers that this process has checked by key; None: a success


def check_driver(device: str | None, successes: ObjectCache | None = None) -> None:
    """Raise BackendError if the drivers, or that of a device, end a process that uses them.

    device     see `choose_device`
    successes  where they are kept
    """
    key = driver_key(device)
    if key not in _results:
        successes = successes if successes is not None else ObjectCache()
        failure = None if successes.get(key) is not None else _run_child(device)
        if failure is None:
            successes.put(key, b"alive")
        _results[key] = failure
    if (known := _results[key]) is not None:
        raise BackendError(known)


def driver_key(device: str | None) -> str:
    """Return the name under which a success is kept."""
    parts = [__version__, sys.version, str(device), settings.OPENCL_VENDORS.value]
    try:
        for path in sorted(settings.OPENCL_VENDORS.path.glob("*.icd")):
            content = path.read_bytes()
            parts += [path.name, str(path.stat().st_mtime_ns), content.hex(), _describe_library(content)]
    except OSError as error:
        parts.append(str(error))
    if len(parts) == NUM_FIXED_PARTS:
        parts.append(date.today().isoformat())
    return "cl-driver-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _describe_library(content: bytes) -> str:
    """Return the size and time of the library that a driver's file names, if it names a path."""
    path = Path(content.decode("utf-8", "replace").strip())
    if not path.is_absolute():
        return ""
    try:
        state = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        return str(error)
    return f"{state.st_size} {state.st_mtime_ns}"


def _run_child(device: str | None) -> str | None:
    """Return why a process that uses a device fails, or None."""
    command = [sys.executable, "-S", "-P", "-c", _START, json.dumps(sys.path), json.dumps(device)]
    try:
        # Not a pipe, which a process that the driver starts and leaves behind would keep open.
        with tempfile.TemporaryFile() as errors:
            child = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                timeout=CHECK_TIMEOUT_SECONDS,
                check=False,
            )
            errors.seek(0)
            written = errors.read().decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        return f"the OpenCL driver hangs (a process that used it did not end in {CHECK_TIMEOUT_SECONDS:g} s). {REMEDY}"
    except OSError:
        return None  # no process can be started: then the driver is used without a check
    if not child.returncode:
        return None
    last_line = " ".join(written.strip().rpartition("\n")[2].split())[:MAX_SHOWN]
    reason = f": {last_line}" if last_line else ""
    if child.returncode == IMPORT_FAILED:
        return f"the check of the OpenCL driver failed before it used the driver{reason}. {INSTALL_REMEDY}"
    return f"the OpenCL driver ended a process that used it ({_name_code(child.returncode)}{reason}). {REMEDY}"


def _name_code(code: int) -> str:
    if code < 0 and os.name == "posix":
        with suppress(ValueError):
            return f"signal {-code}, {signal.Signals(-code).name}"
    return f"exit code {code:#x}" if code > 255 else f"exit code {code}"
