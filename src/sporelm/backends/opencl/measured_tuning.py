"""The tuning parameters that were measured per device on this machine, in a file of the user's.

{"sporelm opencl tuning": [entry, ...]}, where an entry is {"device", "driver", "kernels": digest, "measured":
"2026-11-27", "tuning": values by their name in `DeviceTuning`}. Values that were measured with other kernels or
another driver are not used. The file is data: invalid content is ignored with one warning.
"""

import hashlib
import logging
from collections.abc import Container
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from sporelm import settings
from sporelm.backends.log_once import warn_once
from sporelm.backends.measurement_file import MeasurementFile
from sporelm.backends.opencl.device_selection import OpenClDevice
from sporelm.backends.opencl.device_tuning import GROUPS, DeviceTuning, default_tuning
from sporelm.backends.opencl.kernel_program import SOURCES

log = logging.getLogger(__name__)

LIST_KEY = "sporelm opencl tuning"
VECTORS = frozenset({2, 4, 8, 16})
GROUP_SIZES = frozenset(1 << shift for shift in range(11))  # kernels halve a group step by step
MAX_SLAB_BYTES = 1 << 30
MAX_COUNT = 64  # of rows, blocks and tokens: each has registers of its own
SWITCHES = ("wide_scales", "half_products")
WORDS = ("device", "driver", "kernels", "measured")


@dataclass(frozen=True)
class ActiveTuning:
    """The tuning parameters of a device and, for `spore doctor`, their source."""

    tuning: DeviceTuning
    source: str


@cache
def kernels_digest() -> str:
    """Return a digest of the kernels that parameters were measured with."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.*")):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def tuning_in_use(device: OpenClDevice, path: Path | None = None) -> ActiveTuning:
    """Return the tuning parameters measured on this machine for a device, or the defaults for its kind."""
    defaults = default_tuning(device)
    path = path or settings.OPENCL_TUNING.path
    try:
        entry = TUNING_FILE.read(path).get((device.name, device.driver))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        warn_once(log, f"{path} is ignored: {reason} ('spore bench tune --backend opencl' rewrites it)")
        return ActiveTuning(defaults, f"defaults; {path} is ignored: {reason}")
    remedy = f"run 'spore bench tune --backend opencl --device {device.number}' to measure this machine"
    if entry is None:
        return ActiveTuning(defaults, f"defaults for a {device.kind}; {remedy}")
    if entry["kernels"] != kernels_digest():
        return ActiveTuning(
            defaults, f"defaults; the kernels have changed since those of {entry['measured']} were measured: {remedy}"
        )
    return ActiveTuning(_tuning_of(entry["tuning"], defaults), f"measured here {entry['measured']} ({path})")


def save_tuning(path: Path, device: OpenClDevice, tuning: DeviceTuning) -> None:
    """Save the tuning parameters of a device, and keep those of others. Raise OSError."""
    entry = {
        "device": device.name,
        "driver": device.driver,
        "kernels": kernels_digest(),
        "measured": date.today().isoformat(),
        "tuning": asdict(tuning),
    }
    TUNING_FILE.save(path, entry)


def _check_entry(entry: Any) -> dict[str, Any]:
    """Return an entry that has all its parts, with numbers within their limits. Raise ValueError."""
    if not isinstance(entry, dict) or entry.keys() != {*WORDS, "tuning"}:
        raise ValueError(f"an entry must have exactly {', '.join(WORDS)} and tuning")
    for word in WORDS:
        if not isinstance(entry[word], str) or len(entry[word]) > 200 or not entry[word].isprintable():
            raise ValueError(f"an entry's {word} is not a printable string of at most 200 characters")
    numbers = entry["tuning"]
    if not isinstance(numbers, dict) or not numbers.keys() <= {field.name for field in fields(DeviceTuning)}:
        raise ValueError("an entry's tuning has unknown names")
    for name, value in numbers.items():
        parts = value if name == "tile_group" else [value]
        if not isinstance(parts, list) or len(parts) != (2 if name == "tile_group" else 1):
            raise ValueError(f"an entry's {name} is not valid")
        if not all(type(part) is int and part in _allowed_values(name) for part in parts):
            raise ValueError(f"an entry's {name} is not valid")
    return entry


def _allowed_values(name: str) -> Container[int]:
    """Return the values that a tuning parameter may have."""
    if name in SWITCHES:
        return (0, 1)
    if name == "vector":
        return VECTORS
    if name == "slab_bytes":
        return range(1, MAX_SLAB_BYTES + 1)
    return GROUP_SIZES if name in (*GROUPS, "tile_group") else range(1, MAX_COUNT + 1)


def _tuning_of(numbers: dict[str, Any], defaults: DeviceTuning) -> DeviceTuning:
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in numbers.items()
    }
    return replace(defaults, **given)


TUNING_FILE = MeasurementFile(LIST_KEY, ("device", "driver"), _check_entry)
